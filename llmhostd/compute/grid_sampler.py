"""Which points of a grid must be timed, and what are the others, going by those? (SLINFER §VI-B, OmniServe §3.3.1.)

A grid has two axes: how much is computed (tokens of a chunk, requests of a batch), and how much each of it looks back
at. Along the first nothing is straight, so every 2^x value is timed with the least to look back at: the *spine*. What
looking back adds is linear in both (OmniServe eq. 2 and 3), so it is timed at few points, on *ribs*, and filled in
elsewhere; the idea of Algorithm 1 says where that does not do: the middle of every gap is timed, and where what was
filled in errs, the gap is divided. First a small part near the origin, which is enough to serve with; then as far as
any promise allows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

Point = tuple[int, int]


@dataclass(frozen=True, slots=True)
class GridSamplingPolicy:
    """When a grid is known well enough."""

    tolerance: float = 0.06
    """A filled-in value that is off by more than this is timed, and divides its gap. Noise is about as much."""
    most_samples: int = 24
    """When so many are timed no further gap is looked into: where nothing is straight, noise is what bends it."""
    longest_s: float = 2.0
    """Loads that are expected to take longer are not timed but extrapolated: no promise allows for them."""


@dataclass(frozen=True, slots=True)
class Near:
    """With what to begin."""

    xs: Sequence[int]
    """The part of the spine."""
    y: int
    """How far the only rib reaches, at the middle of `xs`. Stays in: what looks back at anything may take longer than
    what does not, by more than what it looks at."""


class GridSampler:
    """Goes through one grid, one sample at a time."""

    def __init__(self, xs: Sequence[int], ys: Sequence[int], near: Near, policy: GridSamplingPolicy) -> None:
        """Take the 2^x values of both axes, and with which to begin."""
        self._all_xs, self._all_ys = list(xs), list(ys)
        self._policy = policy
        self._seconds: dict[Point, float] = {}
        self._xs = [x for x in xs if x in near.xs] or [xs[0]]
        self._ribs = [self._xs[len(self._xs) // 2]]
        self._ys = [ys[0]]
        if reach := [y for y in ys[1:] if y <= near.y] or list(ys[1:2]):
            self._ys.append(reach[-1])
        self._wide = False
        self._straight: dict[Point, None] = {}
        """Points whose filled-in value was right: their gaps are not looked into."""

    @property
    def timed(self) -> int:
        """How many points were timed."""
        return len(self._seconds)

    @property
    def left(self) -> int:
        """How many points it may still ask for, as it looks now."""
        if self._wide and self.timed >= self._policy.most_samples:
            return sum(1 for _ in self._missing())
        gaps = sum(1 for _ in self._middles()) if self._wide else len(self._all_xs) + 4
        return sum(1 for _ in self._missing()) + gaps

    def near(self) -> Point | None:
        """Return what to time next of the part to begin with; None: all of it was timed."""
        return None if self._wide else next(self._missing(), None)

    def wanted(self) -> Point | None:
        """Return what to time next; None: the grid is known well enough."""
        if not self._wide and next(self._missing(), None) is None:
            self._widen()
        while (missing := next(self._missing(), None)) is None:
            middle = next(self._middles(), None) if self.timed < self._policy.most_samples else None
            if middle is None or middle not in self._seconds:
                return middle
            self._judge(middle)
        return missing

    def learned(self, point: Point, seconds: float) -> None:
        """Take note of a time."""
        self._seconds[point] = seconds

    def grid(self) -> dict[Point, float]:
        """Return the full grid: what was timed, and for the rest what follows from it."""
        points = product(self._xs, self._ys)
        return {(x, y): self._seconds.get((x, y), self._filled_in(x, y)) for x, y in points}

    def _missing(self) -> Iterator[Point]:
        """What is taken in and was not timed: the spine from below, then ribs."""
        points = [*((x, self._ys[0]) for x in self._xs), *product(self._ribs, self._ys[1:])]
        return (point for point in points if point not in self._seconds)

    def _middles(self) -> Iterator[Point]:
        """The middle of every gap that nobody looked into: along the last rib, and between the ribs at their ends."""
        for low, high in pairwise(self._ys):
            if between := [y for y in self._all_ys if low < y < high]:
                yield from self._open((self._ribs[-1], between[len(between) // 2]))
        for low, high in pairwise(self._ribs):
            if between := [x for x in self._xs if low < x < high]:
                yield from self._open((between[len(between) // 2], self._ys[-1]))

    def _open(self, point: Point) -> Iterator[Point]:
        if point not in self._straight:
            yield point

    def _judge(self, middle: Point) -> None:
        """Hold a filled-in value against its time."""
        x, y = middle
        seconds = self._seconds[middle]
        if abs(self._filled_in(x, y) - seconds) <= self._policy.tolerance * seconds:
            self._straight[middle] = None
        elif y in self._ys:
            self._ribs = sorted([*self._ribs, x])
        else:
            self._ys = sorted([*self._ys, y])

    def _widen(self) -> None:
        """Take in the whole spine, ribs at both ends and in the middle, and the far end of the other axis."""
        self._wide = True
        most_s, least_y, near_x, near_y = self._policy.longest_s, self._ys[0], self._xs[-1], self._ys[-1]
        self._xs = [x for x in self._all_xs if x <= near_x or self._foretold(x, least_y) <= most_s]
        far_ys = [y for y in self._all_ys if y > near_y and self._foretold(self._xs[-1], y) <= most_s]
        self._ys += far_ys[-1:]
        self._ribs = sorted({self._xs[0], self._xs[len(self._xs) // 2], self._xs[-1]})

    def _foretold(self, x: int, y: int) -> float:
        """What a load beyond those that were timed takes: on the line through the last two of the spine."""
        spine = sorted((one, seconds) for (one, least), seconds in self._seconds.items() if least == self._ys[0])
        last_x, last_s = spine[-1]
        slope_s = (last_s - spine[-2][1]) / (last_x - spine[-2][0]) if len(spine) > 1 else last_s / last_x
        return last_s + max(slope_s, 0.0) * (x - last_x) + self._growth_s(x, y)

    def _filled_in(self, x: int, y: int) -> float:
        return self._seconds[x, self._ys[0]] + self._growth_s(x, y)

    def _growth_s(self, x: int, y: int) -> float:
        """What looking back at `y` adds: between two ribs on a line, beyond them in proportion to `x`."""
        known = [rib for rib in self._ribs if all((rib, each) in self._seconds for each in self._ys)]
        if len(self._ys) < 2 or not known:
            return 0.0
        below, above = [rib for rib in known if rib <= x], [rib for rib in known if rib > x]
        if not below or not above:
            rib = below[-1] if below else above[0]
            return self._along(rib, y) * x / rib
        low, high = below[-1], above[0]
        low_s, high_s = self._along(low, y), self._along(high, y)
        return low_s + (high_s - low_s) * (x - low) / (high - low)

    def _along(self, rib: int, y: int) -> float:
        """The same on a rib: between two values on a line, beyond them on the last one."""
        least, at = self._ys[0], [one for one in self._ys if one <= y][-1]
        after = next((one for one in self._ys if one > y), None)
        low, high = (at, after) if after is not None else (self._ys[-2], self._ys[-1])
        low_s, high_s = (self._seconds[rib, each] - self._seconds[rib, least] for each in (low, high))
        return max(low_s + (high_s - low_s) * (y - low) / (high - low), 0.0)
