"""How is a word spelled in memory and on the wire?

Every value in `domain` is a frozen msgspec struct: immutable, typed, compared by value, and MessagePack- and JSON-ready
without a second schema. What is made of values that were there before is in no cycle, so the collector need not look
at it (`gc=False`): a busy daemon has thousands that wait for the journal. `Message` adds a type tag, so that a union of
messages decodes to the right one.
"""

from typing import dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Word(msgspec.Struct, frozen=True, gc=False):
    """A plain value. Made with keywords only (mypy holds it)."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Message(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A value that travels: an event or an action, told apart on the wire by its class name."""
