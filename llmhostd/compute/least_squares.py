"""Which straight line (or plane) runs nearest to some measurements?"""

from collections.abc import Sequence


def fit(
    rows: Sequence[Sequence[float]],
    values: Sequence[float],
    weights: Sequence[float],
    least: Sequence[float | None],
) -> tuple[float, ...]:
    """Minimise sum(weight * (row . x - value))^2 over x; x[k] is at least `least[k]` unless that is None.

    A coefficient that would fall below its least is put there, and the others are fitted again. One that the rows do
    not tell apart from others is 0. `weights` of 1 / value count relative deviations.
    """
    fixed: dict[int, float] = {}
    while True:
        free = [k for k in range(len(least)) if k not in fixed]
        found = _solve(rows, [v - sum(fixed[k] * row[k] for k in fixed) for row, v in zip(rows, values, strict=True)],
                       weights, free)  # fmt: skip
        below = [k for k, x in zip(free, found, strict=True) if (bound := least[k]) is not None and x < bound]
        if not below:
            answer = fixed | dict(zip(free, found, strict=True))
            return tuple(answer[k] for k in range(len(least)))
        fixed |= {k: bound for k in below if (bound := least[k]) is not None}


def _solve(
    rows: Sequence[Sequence[float]], values: Sequence[float], weights: Sequence[float], free: Sequence[int]
) -> list[float]:
    """Solve the normal equations of some columns by elimination with pivots."""
    size = len(free)
    scale = [max((abs(row[k]) for row in rows), default=0.0) or 1.0 for k in free]
    matrix = [[0.0] * (size + 1) for _ in range(size)]
    for row, value, weight in zip(rows, values, weights, strict=True):
        part = [row[k] / s * weight for k, s in zip(free, scale, strict=True)]
        for i in range(size):
            for j in range(size):
                matrix[i][j] += part[i] * part[j]
            matrix[i][size] += part[i] * value * weight
    largest = max((matrix[i][i] for i in range(size)), default=0.0)
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(matrix[r][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if abs(matrix[i][i]) <= largest * 1e-12:
            matrix[i] = [0.0] * (size + 1)
            continue
        matrix[i] = [x / matrix[i][i] for x in matrix[i]]
        for r in range(size):
            if r != i:
                matrix[r] = [x - matrix[r][i] * y for x, y in zip(matrix[r], matrix[i], strict=True)]
    return [matrix[i][size] / scale[i] for i in range(size)]
