"""May anything new be given to any node, and if not, why?"""

from collections.abc import Iterable
from typing import Protocol


class Door(Protocol):
    """A node, as its record or as its snapshot."""

    @property
    def up(self) -> bool:
        """Whether its worker answers."""

    @property
    def draining(self) -> bool:
        """Whether nothing new goes there."""


def why_closed(nodes: Iterable[Door]) -> str:
    """Say why nothing new can be given to any of them; empty if it can."""
    up = [node for node in nodes if node.up]
    if not up:
        return "no node is up"
    return "every node that is up is being drained" if all(node.draining for node in up) else ""
