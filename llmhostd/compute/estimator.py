"""How long will an iteration take? (SLINFER §VI-B.)"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec

from llmhostd.compute.interpolation import MonotoneGrid
from llmhostd.domain.errors import OperatorError
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
    """Interpolates a measured profile and learns a correction factor for each of its two tables.

    A mixed iteration is its dense part (all its tokens together, from the prefill table) plus what attention adds for
    each chunk's past and for the decodes' contexts: OmniServe's f_D + f_PA + f_DA (§3.3.1), read off the tables. A lone
    prefill chunk and a pure decode batch are exactly the tables.
    """

    __slots__ = (
        "_decode", "_decode_attention", "_decode_correction", "_policy", "_prefill", "_prefill_attention",
        "_prefill_correction", "_profile",
    )  # fmt: skip

    def __init__(self, profile: Profile, policy: CorrectionPolicy | None = None) -> None:
        """Prepare lookups. Raises OperatorError when the profile is not two full grids of positive times."""
        self._profile = profile
        self._policy = policy or CorrectionPolicy()
        prefill = {(s.chunk_tokens, s.past_tokens): s.seconds for s in profile.prefill}
        decode = {(s.batch, s.context_tokens): s.seconds for s in profile.decode}
        self._prefill = _grid(profile, "prefill", "chunk", "past", prefill)
        self._decode = _grid(profile, "decode", "batch", "context", decode)
        self._prefill_attention = _growth_along_y(self._prefill, prefill)
        self._decode_attention = _growth_along_y(self._decode, decode)
        self._prefill_correction = self._clamped(profile.prefill_correction)
        self._decode_correction = self._clamped(profile.decode_correction)

    @property
    def corrections(self) -> tuple[float, float]:
        """Learned so far: of the prefill table, and of the decode table."""
        return self._prefill_correction, self._decode_correction

    @property
    def profile(self) -> Profile:
        """The measured profile with the corrections learned so far."""
        return msgspec.structs.replace(
            self._profile, prefill_correction=self._prefill_correction, decode_correction=self._decode_correction
        )

    def iteration_s(self, *, prefill: tuple[tuple[int, int], ...], decode_batch: int, decode_context: int) -> float:
        """Seconds of one iteration; 0 when it computes nothing."""
        decode_s = 0.0
        if decode_batch > 0:
            decode_s = self._decode.at(decode_batch, decode_context) * self._decode_correction
        if not prefill:
            return decode_s
        tokens, attention_s, alone_s = max(decode_batch, 0), 0.0, 0.0
        for chunk, past in prefill:
            tokens += chunk
            attention_s += self._prefill_attention.at(chunk, past)
            alone_s = max(alone_s, self._prefill.at(self._computed(chunk), past))
        if decode_batch <= 0 and len(prefill) == 1:
            return alone_s * self._prefill_correction
        seconds = max(self._prefill.at(self._computed(tokens), 0) + attention_s, alone_s) * self._prefill_correction
        if decode_batch > 0:
            seconds += self._decode_attention.at(decode_batch, decode_context) * self._decode_correction
        return max(seconds, decode_s)

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

    def _computed(self, tokens: int) -> int:
        """Return how many tokens the engine computes when asked for so many."""
        step = self._profile.token_step
        return tokens if tokens <= step else -(-tokens // step) * step

    def _clamped(self, factor: float) -> float:
        return min(max(factor, self._policy.least), self._policy.most)


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


def _grid(profile: Profile, table: str, x: str, y: str, points: Mapping[tuple[int, int], float]) -> MonotoneGrid:
    """Build one table, or say which sample is wrong."""
    who = f"profile of {profile.shape_key} on {profile.hardware_key}: {table}"
    if not points:
        raise OperatorError(f"{who} has no samples; measure it again")
    for (x_at, y_at), seconds in points.items():
        if not 0.0 < seconds < float("inf"):
            raise OperatorError(f"{who} sample {x} {x_at}, {y} {y_at} took {seconds} s; measure it again")
    try:
        return MonotoneGrid(points)
    except KeyError as missing:
        x_at, y_at = missing.args[0]
        raise OperatorError(f"{who} has no sample for {x} {x_at}, {y} {y_at}; measure it again") from None


def _growth_along_y(grid: MonotoneGrid, points: Mapping[tuple[int, int], float]) -> MonotoneGrid:
    """What attention adds: seconds above those of the least past (or context) in the same row."""
    least = min(y for _, y in points)
    return MonotoneGrid({(x, y): grid.at(x, y) - grid.at(x, least) for x, y in points})
