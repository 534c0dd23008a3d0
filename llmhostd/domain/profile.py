"""What was measured of a (model shape, hardware) pair?"""

from enum import StrEnum

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


class DenseSample(Word):
    """One measured prefill chunk with nothing before it: almost all of it is dense computation."""

    tokens: int
    seconds: float


class CheckSample(Word):
    """One measured iteration that no model of latency was made from."""

    prefill: tuple[tuple[int, int], ...]
    """(chunk, past) in tokens."""
    batch: int
    """Requests that decode in it."""
    context_tokens: int
    """Their mean context."""
    seconds: float


class LatencyModel(StrEnum):
    """How the time of an iteration is told from samples."""

    INTERPOLATION = "interpolation"
    """Between the samples of two grids (SLINFER §VI-B)."""
    MODULES = "modules"
    """Dense modules by their steps, attention by its load (OmniServe §3.3.1)."""


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
    """Iterations of more tokens than this take as long as those of the next multiple of it..."""
    token_counts: tuple[int, ...] = ()
    """...and those of fewer as long as those of the next of these counts; none: every count takes its own time."""
    prefill_correction: float = 1.0
    """Learned online: observed / predicted."""
    decode_correction: float = 1.0
    dense: tuple[DenseSample, ...] = ()
    """Where dense computation has its steps (OmniServe Algorithm 1)."""
    checks: tuple[CheckSample, ...] = ()
    """By which the two models are compared."""
    latency_model: LatencyModel = LatencyModel.INTERPOLATION
    """The one that deviates less from `checks`."""
    interpolation_error: float | None = None
    """Mean relative deviation from `checks`; None before they were measured."""
    modules_error: float | None = None
    """The same of the other."""
    measured: bool = True
    """False: an estimate from other models on the same hardware, until this one is measured."""
    coarse: bool = False
    """Good enough to serve with; more samples are to follow."""
