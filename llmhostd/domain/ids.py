"""How is each thing called?

Identifiers are made by counters or taken from configuration, never from a clock or a random source, so that the same
history names the same things.
"""

from typing import NewType

ModelName = NewType("ModelName", str)
"""What callers ask for, e.g. `wren-160m`."""

NodeId = NewType("NodeId", str)
"""One schedulable device domain, e.g. `cpu0`."""

InstanceId = NewType("InstanceId", str)
"""A model loaded on a node, e.g. `wren-160m@cpu0#3`."""

RequestId = NewType("RequestId", str)
"""One request, e.g. `req-42`."""

ShapeKey = NewType("ShapeKey", str)
"""Models with the same shape key take the same time per iteration and share one profile."""

HardwareKey = NewType("HardwareKey", str)
"""Nodes with the same hardware key take the same time per iteration and share one profile."""
