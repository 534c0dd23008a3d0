"""What would more, or less, change? Other boxes and other traffic, to put the same question about."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from llmhostd.domain.hardware import NodeKind, NodeSpec
from llmhostd.domain.ids import NodeId
from llmhostd.evaluation.question import Question

AS_IT_IS = "as it is"


@dataclass(frozen=True, slots=True)
class Variant:
    """One of them."""

    name: str
    question: Question
    other_box: bool = True
    """Its limit is worth looking for; with other traffic on the same box, it is the same."""


def variants(question: Question) -> Iterator[Variant]:
    """Yield the question as it is, then what might be asked instead."""
    yield Variant(AS_IT_IS, question)
    for kind in dict.fromkeys(node.kind for node in question.box.nodes):
        yield Variant(f"one more {'GPU' if kind is NodeKind.GPU else 'CPU node'}", one_more(question, kind))
    yield Variant("twice the memory", twice_the_memory(question))
    yield Variant("half the traffic", question.faster(0.5), other_box=False)
    yield Variant("twice the traffic", question.faster(2.0), other_box=False)


def one_more(question: Question, kind: NodeKind) -> Question:
    """One more node like the first of this kind."""
    like = next(node for node in question.box.nodes if node.kind is kind)
    return _with_nodes(question, (*question.box.nodes, msgspec.structs.replace(like, id=_free_id(question, kind))))


def twice_the_memory(question: Question) -> Question:
    """Every node has twice the memory."""
    doubled = (msgspec.structs.replace(node, memory_bytes=2 * node.memory_bytes) for node in question.box.nodes)
    return _with_nodes(question, tuple(doubled))


def _with_nodes(question: Question, nodes: tuple[NodeSpec, ...]) -> Question:
    return replace(question, box=msgspec.structs.replace(question.box, nodes=nodes))


def _free_id(question: Question, kind: NodeKind) -> NodeId:
    taken = {node.id for node in question.box.nodes}
    return next(name for n in range(len(taken) + 1) if (name := NodeId(f"{kind}{n}")) not in taken)
