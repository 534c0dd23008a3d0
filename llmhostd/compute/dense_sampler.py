"""At how many tokens does dense computation take a step? (OmniServe §3.3.1, Algorithm 1.)

Divide and conquer: between two counts of tokens whose times differ by no more than the threshold there is no step;
otherwise the middle and the count after it are timed, and each half is looked at, unless both lie on the straight line
between the ends. Asks for samples, is told seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from llmhostd.domain.profile import DenseSample


@dataclass(frozen=True, slots=True)
class DensePolicy:
    """How closely to look."""

    flat_tokens: int = 16
    """The threshold is how much longer this many tokens take than one."""
    least_threshold: float = 0.05
    """It is at least this share of the shorter time: measurements of the same thing differ by as much."""
    most_samples: int = 12
    """Timed at most, where times differ most first: on hardware that computes token after token, nothing is flat."""
    straight: float = 0.04
    """A time that is off the line by no more than this share lies on it."""


class _Range(NamedTuple):
    first: int
    last: int


class DenseSampler:
    """Goes through Algorithm 1, one sample at a time."""

    def __init__(
        self, most_tokens: int, policy: DensePolicy | None = None, known: Mapping[int, float] | None = None
    ) -> None:
        """Look between one token and the largest chunk of an iteration. `known`: times that need not be taken again."""
        self._policy = policy or DensePolicy()
        self._known = {tokens: seconds for tokens, seconds in (known or {}).items() if tokens <= most_tokens}
        self._seconds: dict[int, float] = {}
        ends = sorted({1, most_tokens, *self._known})
        self._ranges = [_Range(first, last) for first, last in pairwise(ends)]
        self._divided: _Range | None = None
        self._flat_tokens = min(self._policy.flat_tokens, most_tokens)
        self._asked = [tokens for tokens in (1, self._flat_tokens, most_tokens) if tokens not in self._known]

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
            self._look_at_halves()
            if not self._divide():
                return None
        return asked[0]

    def learned(self, tokens: int, seconds: float) -> None:
        """Take note of a time."""
        self._seconds[tokens] = seconds

    def _look_at_halves(self) -> None:
        """Look into both halves of the range that was divided last, unless it is a straight line."""
        whole, self._divided = self._divided, None
        if whole is None:
            return
        middle = (whole.first + whole.last) // 2
        if not all(self._on_line(whole, tokens) for tokens in (middle, middle + 1)):
            self._ranges += [_Range(whole.first, middle), _Range(middle + 1, whole.last)]

    def _on_line(self, whole: _Range, tokens: int) -> bool:
        first_s, last_s = self._at(whole.first), self._at(whole.last)
        line_s = first_s + (last_s - first_s) * (tokens - whole.first) / (whole.last - whole.first)
        return abs(line_s - self._at(tokens)) <= self._policy.straight * self._at(tokens)

    def _divide(self) -> bool:
        """Halve the range whose ends differ most, if that is more than the threshold."""
        steepest = max(self._ranges, key=self._rise_s, default=None)
        if steepest is None or self._rise_s(steepest) <= 0.0:
            return False
        self._ranges.remove(steepest)
        self._divided = steepest
        middle = (steepest.first + steepest.last) // 2
        self._asked = [tokens for tokens in (middle, middle + 1) if tokens not in self._known]
        return True

    def _rise_s(self, within: _Range) -> float:
        """By how much a range rises; 0 when it is flat, or as short as it can be."""
        if within.last - within.first < 2:
            return 0.0
        first_s, last_s = self._at(within.first), self._at(within.last)
        flat_s = self._at(self._flat_tokens) - self._at(1)
        rise_s = last_s - first_s
        return rise_s if rise_s > max(flat_s, self._policy.least_threshold * first_s) else 0.0

    def _at(self, tokens: int) -> float:
        return self._known[tokens] if tokens in self._known else self._seconds[tokens]
