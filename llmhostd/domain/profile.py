"""What was measured of a (model shape, hardware) pair?"""

from llmhostd.domain.ids import HardwareKey, ShapeKey
from llmhostd.domain.words import Word


class PrefillSample(Word):
    """One measured prefill chunk."""

    chunk_tokens: int
    past_tokens: int
    seconds: float


class DecodeSample(Word):
    """One measured decode iteration."""

    batch: int
    context_tokens: int
    """Mean context per request."""
    seconds: float


class Profile(Word):
    """2^x samples on full grids (SLINFER §VI-B): every chunk x every past, every batch x every context."""

    shape_key: ShapeKey
    hardware_key: HardwareKey
    prefill: tuple[PrefillSample, ...]
    decode: tuple[DecodeSample, ...]
    load_s: float
    """Cold to warm."""
    first_run_s: float
    """Warm to resident: what the first iteration takes longer than the second (weight packing)."""
    resident_bytes: int
    """What a resident instance holds beside its KV (mapped checkpoint pages not counted twice)."""
    warm_bytes: int
    token_step: int = 1
    """Iterations of more tokens than this take as long as those of the next multiple of it."""
    prefill_correction: float = 1.0
    """Learned online: observed / predicted."""
    decode_correction: float = 1.0
