"""At how many tokens does dense computation take a step? (OmniServe §3.3.1, Algorithm 1.)

Divide and conquer: between two counts of tokens whose times differ by no more than the threshold the line is straight;
otherwise the middle and the count after it are timed, and each half is looked at. Asks for samples, is told seconds.
"""

from dataclasses import dataclass
from typing import NamedTuple

from llmhostd.domain.profile import DenseSample


@dataclass(frozen=True, slots=True)
class DensePolicy:
    """How closely to look."""

    flat_tokens: int = 16
    """The threshold is how much longer this many tokens take than one."""
    least_threshold: float = 0.05
    """It is at least this share of the shorter time: measurements of the same thing differ by as much."""
    most_samples: int = 24
    """Timed at most, where times differ most first: on hardware that computes token after token, nothing is flat."""


class _Range(NamedTuple):
    first: int
    last: int


class DenseSampler:
    """Goes through Algorithm 1, one sample at a time."""

    def __init__(self, most_tokens: int, policy: DensePolicy | None = None) -> None:
        """Look between one token and the largest chunk of an iteration."""
        self._policy = policy or DensePolicy()
        self._seconds: dict[int, float] = {}
        self._ranges = [_Range(1, most_tokens)]
        self._flat_tokens = min(self._policy.flat_tokens, most_tokens)
        self._asked = [1, self._flat_tokens, most_tokens]

    @property
    def samples(self) -> tuple[DenseSample, ...]:
        """What was timed, by tokens."""
        return tuple(DenseSample(tokens=tokens, seconds=s) for tokens, s in sorted(self._seconds.items()))

    @property
    def left(self) -> int:
        """How many more it may ask for; 0 at the end."""
        return 0 if self.wanted() is None else self._policy.most_samples - len(self._seconds)

    def wanted(self) -> int | None:
        """Return the count of tokens to time next; None: it knows enough."""
        if len(self._seconds) >= self._policy.most_samples:
            return None
        while not (asked := [tokens for tokens in self._asked if tokens not in self._seconds]):
            if not self._divide():
                return None
        return asked[0]

    def learned(self, tokens: int, seconds: float) -> None:
        """Take note of a time."""
        self._seconds[tokens] = seconds

    def _divide(self) -> bool:
        """Halve the range whose ends differ most, if that is more than the threshold."""
        steepest = max(self._ranges, key=self._rise_s, default=None)
        if steepest is None or self._rise_s(steepest) <= 0.0:
            return False
        self._ranges.remove(steepest)
        middle = (steepest.first + steepest.last) // 2
        self._ranges += [_Range(steepest.first, middle), _Range(middle + 1, steepest.last)]
        self._asked = [middle, middle + 1]
        return True

    def _rise_s(self, within: _Range) -> float:
        """By how much a range rises; 0 when it is flat, or as short as it can be."""
        if within.last - within.first < 2:
            return 0.0
        first_s, last_s = self._seconds[within.first], self._seconds[within.last]
        flat_s = self._seconds[self._flat_tokens] - self._seconds[1]
        rise_s = last_s - first_s
        return rise_s if rise_s > max(flat_s, self._policy.least_threshold * first_s) else 0.0
