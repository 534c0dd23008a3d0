"""How is a word spelled in memory and on the wire?

Every value in `domain` is a frozen msgspec struct: immutable, typed, compared by value, and MessagePack- and JSON-ready
without a second schema. `Message` adds a type tag, so that a union of messages decodes to the right one.
"""

from typing import dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Word(msgspec.Struct, frozen=True):
    """A plain value. Made with keywords only (mypy holds it)."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Message(msgspec.Struct, frozen=True, tag=True):
    """A value that travels: an event or an action, told apart on the wire by its class name."""
