"""How well would this box serve this traffic? One simulation, told model by model."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import ModelName
from llmhostd.domain.words import Word
from llmhostd.evaluation.watching import Miss, NodeUse, WatchedMind
from llmhostd.simulator.box import Box
from llmhostd.simulator.device import Physics
from llmhostd.simulator.faults import Faults, Misfortune
from llmhostd.simulator.minds import Minds
from llmhostd.simulator.policies import Policies
from llmhostd.simulator.report import Observation
from llmhostd.simulator.workload import SimulatedRequest
from llmhostd.simulator.world import World

CHECK_EVERY = 50_000


@dataclass(frozen=True, slots=True)
class Question:
    """A box and its traffic, whose callers ask once. Can be sent to another process."""

    box: Box
    """With a profile for every shape on every hardware."""
    requests: Sequence[SimulatedRequest]
    """In order of arrival."""
    policies: Policies
    physics: Physics
    seed: int

    def faster(self, speed: float) -> "Question":
        """The same requests, `speed` times as fast."""
        moved = [
            msgspec.structs.replace(
                one, shape=msgspec.structs.replace(one.shape, arrived_s=one.shape.arrived_s / speed)
            )
            for one in self.requests
        ]
        return replace(self, requests=moved)


class ModelAnswer(Word):
    """How one model's callers fare."""

    model: ModelName
    requests: int
    met: int
    attainment: float
    """Of all its requests; refused ones are missed."""
    ttft_p50_s: float | None
    """Of those served; None: nobody was."""
    ttft_p99_s: float | None
    missed: dict[Miss, int]
    """How, most first."""
    cold_starts: int
    ttft_slo_s: float
    """The longest that any of its requests was promised."""
    tpot_slo_s: float


class Answer(Word):
    """How everybody fares."""

    requests: int
    met: int
    attainment: float
    rate: float
    """Requests per second, from the first arrival to the last."""
    missed: dict[Miss, int]
    models: tuple[ModelAnswer, ...]
    nodes: tuple[NodeUse, ...]


def answer(question: Question) -> Answer:
    """Simulate it."""
    watched: list[WatchedMind] = []
    made = question.policies.minds()

    def watch(specs: Sequence[NodeSpec]) -> WatchedMind:
        watched.append(WatchedMind(made.host(specs), specs))
        return watched[-1]

    world = World(
        question.box,
        question.requests,
        seed=question.seed,
        physics=question.physics,
        misfortune=Misfortune(Faults(), question.seed),
        check_every=CHECK_EVERY,
        minds=Minds(host=watch, node=made.node),
    )
    world.run()
    return _told(world, watched[0])


def _told(world: World, mind: WatchedMind) -> Answer:
    seen = list(world.callers.observations.values())
    by_model: dict[ModelName, list[Observation]] = {}
    for each in seen:
        by_model.setdefault(each.asked.shape.model, []).append(each)
    last_s = max((each.asked.shape.arrived_s for each in seen), default=0.0)
    first_s = min((each.asked.shape.arrived_s for each in seen), default=0.0)
    met = sum(each.met for each in seen)
    return Answer(
        requests=len(seen),
        met=met,
        attainment=met / max(len(seen), 1),
        rate=len(seen) / max(last_s - first_s, 1e-9),
        missed=_missed(seen, mind),
        models=tuple(_model(name, by_model[name], mind) for name in sorted(by_model)),
        nodes=mind.use(world.now),
    )


def _model(name: ModelName, seen: Sequence[Observation], mind: WatchedMind) -> ModelAnswer:
    ttft_s = [each.ttft_s for each in seen if each.token_s]
    met = sum(each.met for each in seen)
    return ModelAnswer(
        model=name,
        requests=len(seen),
        met=met,
        attainment=met / len(seen),
        ttft_p50_s=float(np.percentile(ttft_s, 50)) if ttft_s else None,
        ttft_p99_s=float(np.percentile(ttft_s, 99)) if ttft_s else None,
        missed=_missed(seen, mind),
        cold_starts=mind.cold_starts[name],
        ttft_slo_s=max(each.asked.shape.slo.ttft_s for each in seen),
        tpot_slo_s=max(each.asked.shape.slo.tpot_s for each in seen),
    )


def _missed(seen: Sequence[Observation], mind: WatchedMind) -> dict[Miss, int]:
    """Count how. Whoever was served late after a refusal counts as refused."""
    counts = Counter(mind.refused.get(each.asked.shape.id, Miss.LATE) for each in seen if not each.met)
    return dict(counts.most_common())
