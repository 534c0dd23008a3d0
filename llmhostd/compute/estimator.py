"""How long will an iteration take? (SLINFER §VI-B.)"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec

from llmhostd.compute.model_choice import model_of
from llmhostd.domain.profile import Profile


class Estimator(Protocol):
    """Predicts seconds for one model shape on one kind of hardware."""

    def iteration_s(self, *, prefill: tuple[tuple[int, int], ...], decode_batch: int, decode_context: int) -> float:
        """One iteration: prefill chunks as (chunk, past) tokens, and a decode batch with its mean context."""
        ...


class IterationKind(StrEnum):
    """Which of the two measured tables an iteration mostly rests on."""

    PREFILL = "prefill"
    """It computes at least one prefill chunk."""
    DECODE = "decode"
    """It computes one token of each request."""


@dataclass(frozen=True, slots=True)
class CorrectionPolicy:
    """How predictions follow what iterations really take."""

    weight: float = 0.05
    """Share of one observation in the learned correction (an exponentially weighted mean)."""
    least: float = 0.5
    """Corrections never go below this factor."""
    most: float = 3.0
    """Corrections never go above this factor; a single observation counts as at most this many times the prediction."""
    tell_change: float = 0.05
    """A node tells its host, which keeps it, when a correction has changed by this share since it last did."""


class ProfiledEstimator:
    """Tells times by a profile, by its better model, and learns a correction factor for each of two kinds."""

    __slots__ = ("_decode_correction", "_policy", "_prefill_correction", "_profile", "_seconds")

    def __init__(self, profile: Profile, policy: CorrectionPolicy | None = None) -> None:
        """Prepare lookups. Raises OperatorError when the profile is not two full grids of positive times."""
        self._profile = profile
        self._policy = policy or CorrectionPolicy()
        self._seconds = model_of(profile).seconds
        self._prefill_correction = self._clamped(profile.prefill_correction)
        self._decode_correction = self._clamped(profile.decode_correction)

    @property
    def corrections(self) -> tuple[float, float]:
        """Learned so far: of the prefill table, and of the decode table."""
        return self._prefill_correction, self._decode_correction

    @property
    def measured(self) -> bool:
        """Whether it rests on measurements, and not on an estimate (`compute.prior`)."""
        return self._profile.measured

    @property
    def profile(self) -> Profile:
        """The profile with the corrections learned so far."""
        return msgspec.structs.replace(
            self._profile, prefill_correction=self._prefill_correction, decode_correction=self._decode_correction
        )

    def iteration_s(self, *, prefill: tuple[tuple[int, int], ...], decode_batch: int, decode_context: int) -> float:
        """Seconds of one iteration; 0 when it computes nothing."""
        return self._seconds(prefill, decode_batch, decode_context, self._prefill_correction, self._decode_correction)

    def observe(self, kind: IterationKind, *, predicted_s: float, actual_s: float) -> None:
        """Learn from one finished iteration; `predicted_s` is what `iteration_s` said of it."""
        if predicted_s <= 0.0 or actual_s <= 0.0:
            return
        weight = self._policy.weight
        surprise = 1.0 - weight + weight * self._clamped(actual_s / predicted_s)
        if kind is IterationKind.PREFILL:
            self._prefill_correction = self._clamped(self._prefill_correction * surprise)
        else:
            self._decode_correction = self._clamped(self._decode_correction * surprise)

    def _clamped(self, factor: float) -> float:
        return min(max(factor, self._policy.least), self._policy.most)


class SettlingEstimator:
    """Tells times while an instance packs weights beside its iterations, from what that cost the last of them."""

    __slots__ = ("extra_s", "settled")

    WEIGHT = 0.5
    """Share of one observation in what is expected of the next iteration: there are some ten of them."""

    def __init__(self, settled: Estimator) -> None:
        """`settled`: tells the times of later."""
        self.settled = settled
        self.extra_s = 0.0
        """How much longer the next iteration will take."""

    def iteration_s(self, *, prefill: tuple[tuple[int, int], ...], decode_batch: int, decode_context: int) -> float:
        """Seconds of one iteration; 0 when it computes nothing."""
        seconds = self.settled.iteration_s(prefill=prefill, decode_batch=decode_batch, decode_context=decode_context)
        return seconds + self.extra_s if seconds else 0.0

    def observe(self, *, predicted_s: float, actual_s: float) -> None:
        """Learn from one iteration; `predicted_s` is what was said of it here."""
        self.extra_s = max(self.extra_s + self.WEIGHT * (actual_s - predicted_s), 0.0)


class RoughEstimator:
    """Stands in until a model shape was measured: bytes over a slow machine's memory bandwidth, never flattering."""

    __slots__ = ("_step_s",)

    BYTES_PER_S = 8e9
    """Weights read per second."""
    TOKENS_PER_STEP = 48
    """Tokens whose arithmetic takes as long as reading the weights once."""

    def __init__(self, weight_bytes: int) -> None:
        self._step_s = max(weight_bytes, 1) / self.BYTES_PER_S

    def iteration_s(self, *, prefill: tuple[tuple[int, int], ...], decode_batch: int, decode_context: int) -> float:  # noqa: ARG002 - the contract's names
        """Seconds of one iteration; 0 when it computes nothing."""
        tokens = decode_batch + sum(chunk for chunk, _ in prefill)
        return self._step_s * (1.0 + tokens / self.TOKENS_PER_STEP) if tokens else 0.0
