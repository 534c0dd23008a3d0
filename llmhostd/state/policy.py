"""What is promised for a model, and in what precision is it computed, when nobody said otherwise?"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SloPolicy:
    """What a waiting person is promised; `models add` may say otherwise for one model."""

    ttft_s: float = 2.0
    """Time to first token, from arrival."""
    tpot_s: float = 0.2
    """Time per output token after the first."""


@dataclass(frozen=True, slots=True)
class PrecisionPolicy:
    """How models are computed; `models add` may say otherwise for one model."""

    compute: str = "auto"
    """`bf16`, `f32`, or `auto`: bf16 where the CPU computes it in hardware and the weights are not quantized."""
    kv: str = "u8"
    """How keys and values are kept: `u8`, `bf16` or `f32`."""


@dataclass(frozen=True, slots=True)
class AdapterPolicy:
    """How much room a model is loaded with for the adapters that were added to it. Without any it has none."""

    slots: int = 8
    """Adapters that one iteration may have at most. Where requests name more, they take turns."""
    most_rank: int = 64
    """An adapter of a larger rank is refused: every slot of its base would have to be as large."""


@dataclass(frozen=True, slots=True)
class FlexPolicy:
    """What is remembered of best-effort calls (`service_tier: "flex"`), so that the daemon's end loses none of them."""

    save_s: float = 0.5
    """How far running ones are is written this often; what was computed since then is computed again after a crash."""
    answers_kept: int = 1000
    """Answers whose callers' connections ended with the daemon wait under `/api/v1/requests/ID`: this many, ..."""
    answers_keep_s: float = 604800.0
    """... and this long."""
