"""How much more could this box take, and what would break first?"""

from collections.abc import Callable

from llmhostd.domain.words import Word
from llmhostd.evaluation.question import Answer

GOOD = 0.99
"""Attainment below which a box is said to break."""
MOST, LEAST = 64.0, 1 / 16
"""Times the traffic: more than the one, and less than the other, is not tried."""
FINE_ENOUGH = 1.05
"""The limit is known to this factor."""


class Limit(Word):
    """Where a box begins to break."""

    speed: float
    """Times the traffic that was asked about; the most that was tried if it never broke."""
    held: Answer | None
    """At that traffic; None if even the least that was tried was too much."""
    broke: Answer | None
    """At the least traffic that was too much; None if nothing was."""
    tried: tuple[tuple[float, float], ...]
    """(times the traffic, attainment), the least first."""


def find_limit(ask: Callable[[float], Answer], at_one: Answer) -> Limit:
    """Double or halve the traffic until it breaks or holds, then bisect between the two.

    `ask` answers for a multiple of the traffic, `at_one` is its answer for 1. More traffic is taken to be no easier.
    """
    answers = {1.0: at_one}
    held, broke = (1.0, None) if at_one.attainment >= GOOD else (None, 1.0)
    while broke is None and held is not None and held < MOST:
        answers[held * 2] = ask(held * 2)
        held, broke = (held * 2, None) if answers[held * 2].attainment >= GOOD else (held, held * 2)
    while held is None and broke is not None and broke > LEAST:
        answers[broke / 2] = ask(broke / 2)
        held, broke = (broke / 2, broke) if answers[broke / 2].attainment >= GOOD else (None, broke / 2)
    while held is not None and broke is not None and broke / held > FINE_ENOUGH:
        middle = (held * broke) ** 0.5
        answers[middle] = ask(middle)
        held, broke = (middle, broke) if answers[middle].attainment >= GOOD else (held, middle)
    return Limit(
        speed=held if held is not None else broke or 1.0,
        held=answers[held] if held is not None else None,
        broke=answers[broke] if broke is not None else None,
        tried=tuple(sorted((speed, one.attainment) for speed, one in answers.items())),
    )
