"""What breaks first? That of which twice as much helps most where the box is pressed.

What a refusal says is only how it came to it: a request that a slow node would serve late may have lacked a place on a
fast one, whose memory is full. So refusals are asked only where several would help as much.
"""

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum

import msgspec

from llmhostd.domain.words import Word
from llmhostd.evaluation.limit import GOOD, Limit
from llmhostd.evaluation.question import Answer, Question, answer
from llmhostd.evaluation.variants import twice_the_memory
from llmhostd.evaluation.watching import Miss

PRESSED = 2.0
"""Times the limit: where enough is missed to tell what helps."""
HARDER = 3
"""How often it is pressed harder where nothing is missed even there."""


class Scarce(StrEnum):
    """What a box may have too little of."""

    COMPUTE = "compute"
    MEMORY = "memory"
    LOADING = "loading"


class Relief(Word):
    """A box under pressure, and what would help it."""

    speed: float
    """Times the traffic that was asked about."""
    pressed: Answer
    with_twice: dict[Scarce, float]
    """Attainment with nodes twice as fast, with twice their memory, with loads twice as fast; the best first."""

    @property
    def breaks(self) -> Scarce | None:
        """What helps most; None if nothing helps."""
        best, attainment = next(iter(self.with_twice.items()))
        return best if attainment > self.pressed.attainment else None


def twice_as_fast(question: Question) -> Question:
    """Iterations take half as long."""
    return _with_profiles(question, lambda one: {
        "prefill_correction": one.prefill_correction / 2, "decode_correction": one.decode_correction / 2
    })  # fmt: skip


def twice_as_fast_loads(question: Question) -> Question:
    """Loads, and what first iterations take longer, take half as long."""
    return _with_profiles(question, lambda one: {"load_s": one.load_s / 2, "first_run_s": one.first_run_s / 2})


HELPS: dict[Scarce, Callable[[Question], Question]] = {
    Scarce.COMPUTE: twice_as_fast, Scarce.MEMORY: twice_the_memory, Scarce.LOADING: twice_as_fast_loads,
}  # fmt: skip

SAID_BY = {Scarce.COMPUTE: Miss.LATE, Scarce.MEMORY: Miss.NO_ROOM, Scarce.LOADING: Miss.COLD}


def relieve(question: Question, at_one: Answer, limit: Limit | None) -> Relief | None:
    """Press a box to twice its limit (or, where that was not looked for, ask as it was asked); None if it holds."""
    if limit is None:
        speed = 1.0
    elif limit.broke is None:
        return None
    else:
        speed = limit.speed * (PRESSED if limit.held else 1.0)
    pressed = at_one if speed == 1.0 else answer(question.faster(speed))
    for _ in range(HARDER if limit else 0):  # just beyond a limit a short burst may pass by chance
        if pressed.attainment < GOOD:
            break
        speed *= PRESSED
        pressed = answer(question.faster(speed))
    if pressed.attainment >= GOOD:
        return None
    under = question.faster(speed)
    helped = {scarce: answer(help_of(under)).attainment for scarce, help_of in HELPS.items()}
    best_first = sorted(helped.items(), key=lambda one: (-one[1], -pressed.missed.get(SAID_BY[one[0]], 0)))
    return Relief(speed=speed, pressed=pressed, with_twice=dict(best_first))


def _with_profiles(question: Question, change: Callable[..., dict[str, float]]) -> Question:
    changed = tuple(msgspec.structs.replace(one, **change(one)) for one in question.box.profiles)
    return replace(question, box=msgspec.structs.replace(question.box, profiles=changed))
