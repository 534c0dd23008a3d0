"""Bases with more adapters than slots, in whatever world: every invariant at every step, and nobody lost."""

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_worlds import BOXES, FAULTS, LOADS

from llmhostd.bench.load import schedule
from llmhostd.domain.model import AdapterSlots, LowRankAdapter, ModelSpec
from llmhostd.simulator.box import complete
from llmhostd.simulator.chance import Chance, Purpose
from llmhostd.simulator.replay import replay
from llmhostd.simulator.roofline import Roofline
from llmhostd.simulator.workload import requests_of

MODULES = ("self_attn.q_proj",)


def with_adapters(box, slots, each):
    """Every model gets room, and so many adapters; the last node computes none, if there are several."""
    models = []
    room = AdapterSlots(slots=slots, rank=8, modules=MODULES, slot_bytes=4 << 20)
    for base in box.models:
        shape = msgspec.structs.replace(base.shape, adapters=room)
        models.append(msgspec.structs.replace(base, shape=shape))
        for number in range(each):
            adapter = LowRankAdapter(
                base=base.name, identity=f"{base.name}/{number}", rank=8, modules=MODULES, parameters=1, bytes=2
            )
            name = f"{base.name}-a{number}"
            models.append(ModelSpec(name=name, shape=shape, slo=base.slo, adapter=adapter))
    last = len(box.nodes) - 1
    nodes = [msgspec.structs.replace(one, adapters=not last or place < last) for place, one in enumerate(box.nodes)]
    return complete(msgspec.structs.replace(box, nodes=tuple(nodes), models=tuple(models)), Roofline())


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    box=st.builds(with_adapters, BOXES, st.integers(1, 2), st.integers(1, 4)),
    load=LOADS,
    faults=FAULTS,
    best_effort_share=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_nothing_is_lost(box, load, faults, best_effort_share):
    planned = schedule(load, [spec.name for spec in box.models])
    asked = requests_of(
        planned, box.models, chance=Chance(load.seed, Purpose.TIERS), best_effort_share=best_effort_share
    )
    report = replay(asked, box, seed=load.seed, noise=0.0, faults=faults, measured=True, check_every=1)
    assert report.lost == 0
    assert report.finished + report.left + sum(report.refused.values()) == len(asked)
