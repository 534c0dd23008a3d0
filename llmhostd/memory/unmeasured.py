"""How many bytes does an instance hold of a model that nobody measured? Host and node go by the same guess."""

from llmhostd.domain.model import ModelShape

OVERHEAD = 1.25
"""A resident instance is taken to hold its checkpoint's bytes times this..."""
WARM_BYTES = 64 << 20
"""...and a warm one this much; both what its room for adapters takes as well. Until it was loaded or measured here."""


def warm_bytes(shape: ModelShape) -> int:
    """Guess what an instance holds once it is compiled and before it runs."""
    return WARM_BYTES + shape.adapter_bytes


def resident_bytes(shape: ModelShape) -> int:
    """Guess what an instance holds beside KV once it has run."""
    return int(shape.weight_bytes * OVERHEAD) + shape.adapter_bytes
