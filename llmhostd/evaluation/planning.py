"""What can this box promise to this traffic, what breaks first, and what would more of anything buy?"""

from collections.abc import Callable
from concurrent.futures import Executor, Future, as_completed

from llmhostd.domain.words import Word
from llmhostd.evaluation.limit import Limit, find_limit
from llmhostd.evaluation.question import Answer, Question, answer
from llmhostd.evaluation.relief import Relief, relieve
from llmhostd.evaluation.variants import AS_IT_IS, Variant, variants


class Outlook(Word):
    """One box with one traffic."""

    name: str
    answer: Answer
    limit: Limit | None
    """None: not looked for."""
    relief: Relief | None = None
    """What breaks first; of the box as it is, and where it breaks at all."""


class Plan(Word):
    """The box as it is, first; then its variants."""

    outlooks: tuple[Outlook, ...]

    @property
    def as_it_is(self) -> Outlook:
        """What was asked."""
        return self.outlooks[0]


def make_plan(question: Question, pool: Executor, *, limits: bool, told: Callable[[str, int, int], None]) -> Plan:
    """Answer the question and its variants in the pool's processes.

    `limits`: also find how much traffic each box takes. `told` hears (what was answered, how many were, of how many).
    """
    asked = list(variants(question))
    tasks: dict[Future[Outlook], str] = {pool.submit(look, one, limits): one.name for one in asked}
    for done, task in enumerate(as_completed(tasks), start=1):
        told(tasks[task], done, len(tasks))
    return Plan(outlooks=tuple(task.result() for task in tasks))


def look(variant: Variant, limits: bool) -> Outlook:
    """Answer one of them."""
    question = variant.question
    at_one = answer(question)
    wanted = limits and variant.other_box
    limit = find_limit(lambda speed: answer(question.faster(speed)), at_one) if wanted else None
    relief = relieve(question, at_one, limit) if variant.name == AS_IT_IS else None
    return Outlook(name=variant.name, answer=at_one, limit=limit, relief=relief)
