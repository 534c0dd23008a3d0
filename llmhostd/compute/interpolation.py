"""What does a measured grid say between its points, and beyond them?

Bilinear inside the grid, linear beyond its far ends, flat below its near ends (SLINFER §VI-B). Made monotone: noise in
a measurement must not let a larger load look cheaper, or the binary search for a chunk would not find the largest.
"""

from bisect import bisect_right
from collections.abc import Mapping
from itertools import pairwise

FAR = float(1 << 20)
"""The grid is continued linearly to its last coordinates times this, so that lookups know no special cases."""


class Line:
    """Seconds over one axis, by straight pieces; flat before the first point."""

    __slots__ = ("_last", "_pieces", "_ys")

    def __init__(self, ys: list[float], values: list[float]) -> None:
        """Go through `(y, seconds)` points, at least two, in order of y; the last piece has no end."""
        self._ys, self._last = ys, len(ys) - 1
        ends = zip(pairwise(ys), pairwise(values), strict=True)
        self._pieces = [(low, near, (far - near) / (high - low)) for (low, high), (near, far) in ends]

    def above(self, seconds: float) -> "Line":
        """Return it with so much added everywhere."""
        return Line(self._ys, [seconds + self.at(y) for y in self._ys])

    def at(self, y: float) -> float:
        """Seconds at `y`. Exactly the value of a point on it."""
        low, near, slope = self._pieces[bisect_right(self._ys, y, 1, self._last) - 1]
        return near + (y - low) * slope if y > low else near


class MonotoneGrid:
    """Seconds over two axes; never falls along either."""

    __slots__ = ("_columns", "_rows", "_values", "_xs", "_ys")

    def __init__(self, points: Mapping[tuple[int, int], float]) -> None:
        """Take `(x, y) -> seconds` on a full grid. Raises KeyError with the first `(x, y)` that is missing."""
        xs = sorted({x for x, _ in points})
        ys = sorted({y for _, y in points})
        values = never_falling([[points[x, y] for y in ys] for x in xs])
        self._xs, self._ys, self._values = _continued(xs, ys, values)
        self._columns = len(self._ys) - 1
        self._rows = len(self._xs) - 1

    def along(self, x: float) -> Line:
        """Cut through the grid at one `x`: for whoever looks there often."""
        i = bisect_right(self._xs, x, 1, self._rows) - 1
        near, far = self._values[i], self._values[i + 1]
        share = max((x - self._xs[i]) / (self._xs[i + 1] - self._xs[i]), 0.0)
        return Line(self._ys, [low + share * (high - low) for low, high in zip(near, far, strict=True)])

    def least(self, x: float) -> float:
        """Seconds at `x` and the least `y`."""
        return self.at(x, self._ys[0])

    def at(self, x: float, y: float) -> float:
        """Seconds at `(x, y)`. Exactly the measured value on a grid point."""
        xs, ys = self._xs, self._ys
        i = bisect_right(xs, x, 1, self._rows) - 1
        j = bisect_right(ys, y, 1, self._columns) - 1
        along_x = (x - xs[i]) / (xs[i + 1] - xs[i]) if x > xs[i] else 0.0
        along_y = (y - ys[j]) / (ys[j + 1] - ys[j]) if y > ys[j] else 0.0
        near, far = self._values[i], self._values[i + 1]
        left = near[j] + along_y * (near[j + 1] - near[j])
        if not along_x:
            return left
        right = far[j] + along_y * (far[j + 1] - far[j])
        return left + along_x * (right - left)


def never_falling(values: list[list[float]]) -> list[list[float]]:
    """Put every value midway between the largest of those with smaller coordinates and the least of those with larger.

    Both bounds never fall, so their middle does not; a value that contradicts no other stays. Noise is as often too low
    as too high: only raising what came after would take the worst of it for the truth.
    """
    raised = [row.copy() for row in values]
    _never_fall(raised)
    mirrored = [[-value for value in reversed(row)] for row in reversed(values)]
    _never_fall(mirrored)
    lowered = [[-value for value in reversed(row)] for row in reversed(mirrored)]
    return [
        [high if high == low else (high + low) / 2 for high, low in zip(*rows, strict=True)]
        for rows in zip(raised, lowered, strict=True)
    ]


def _never_fall(values: list[list[float]]) -> None:
    """Raise every value to the largest of those with smaller coordinates."""
    for i, row in enumerate(values):
        for j in range(len(row)):
            if i:
                row[j] = max(row[j], values[i - 1][j])
            if j:
                row[j] = max(row[j], row[j - 1])


def _continued(
    xs: list[int], ys: list[int], values: list[list[float]]
) -> tuple[list[float], list[float], list[list[float]]]:
    """Add one far point to each axis, on the line through the last two (an axis with one point continues flat)."""
    far_x, far_y = max(xs[-1], 1) * FAR, max(ys[-1], 1) * FAR
    grid = [[*row, _beyond(ys, row, far_y)] for row in values]
    columns = [[row[j] for row in grid] for j in range(len(ys) + 1)]
    grid.append([_beyond(xs, column, far_x) for column in columns])
    _never_fall(grid)
    return [*map(float, xs), far_x], [*map(float, ys), far_y], grid


def _beyond(axis: list[int], values: list[float], far: float) -> float:
    """Extend the line through the last two values to the coordinate `far`."""
    if len(axis) == 1:
        return values[-1]
    slope = (values[-1] - values[-2]) / (axis[-1] - axis[-2])
    return values[-1] + slope * (far - axis[-1])
