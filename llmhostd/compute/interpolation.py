"""What does a measured grid say between its points, and beyond them?

Bilinear inside the grid, linear beyond its far ends, flat below its near ends (SLINFER §VI-B). Made monotone: noise in
a measurement must not let a larger load look cheaper, or the binary search for a chunk would not find the largest.
"""

from bisect import bisect_right
from collections.abc import Mapping

FAR = float(1 << 20)
"""The grid is continued linearly to its last coordinates times this, so that lookups know no special cases."""


class MonotoneGrid:
    """Seconds over two axes; never falls along either."""

    __slots__ = ("_columns", "_rows", "_values", "_xs", "_ys")

    def __init__(self, points: Mapping[tuple[int, int], float]) -> None:
        """Take `(x, y) -> seconds` on a full grid. Raises KeyError with the first `(x, y)` that is missing."""
        xs = sorted({x for x, _ in points})
        ys = sorted({y for _, y in points})
        values = [[points[x, y] for y in ys] for x in xs]
        _never_fall(values)
        self._xs, self._ys, self._values = _continued(xs, ys, values)
        self._columns = len(self._ys) - 1
        self._rows = len(self._xs) - 1

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
