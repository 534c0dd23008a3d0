"""In whatever world: is every invariant kept at every step, every stream whole, and nobody lost?"""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmhostd.bench.load import Load, schedule
from llmhostd.bench.schedule import Lengths
from llmhostd.domain.events import MeasureAsked, UnloadAsked, WarmUpAsked
from llmhostd.simulator.box import make_box
from llmhostd.simulator.chance import Chance, Purpose
from llmhostd.simulator.faults import Faults
from llmhostd.simulator.replay import replay
from llmhostd.simulator.workload import requests_of

FAULTS = st.builds(
    Faults,
    death_every_s=st.sampled_from([0.0, 4.0, 15.0]),
    failed_load_share=st.sampled_from([0.0, 0.1]),
    slow_iteration_share=st.sampled_from([0.0, 0.05]),
    leaver_share=st.sampled_from([0.0, 0.3]),
)
BOXES = st.builds(
    make_box,
    models=st.integers(1, 8),
    sizes=st.sampled_from([("160m",), ("160m", "500m")]),
    nodes=st.integers(1, 3),
    memory_bytes=st.sampled_from([700 << 20, 1500 << 20, 4 << 30]),
)
LOADS = st.builds(
    Load,
    models=st.just(()),
    rate=st.sampled_from([1.0, 5.0, 25.0]),
    burst=st.sampled_from([None, (1.0, 4.0)]),
    requests=st.integers(1, 50),
    input_tokens=st.builds(Lengths, first=st.just(1), last=st.sampled_from([30, 700, 5000])),
    output_tokens=st.builds(Lengths, first=st.just(1), last=st.sampled_from([3, 90])),
    seed=st.integers(0, 2**32),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    box=BOXES,
    load=LOADS,
    faults=FAULTS,
    best_effort_share=st.sampled_from([0.0, 0.3, 1.0]),
    noise=st.sampled_from([0.0, 0.3]),
    measured=st.booleans(),
)
def test_nothing_is_lost(box, load, faults, best_effort_share, noise, measured):
    planned = schedule(load, [spec.name for spec in box.models])
    asked = requests_of(
        planned, box.models, chance=Chance(load.seed, Purpose.TIERS), best_effort_share=best_effort_share
    )
    report = replay(
        asked, box, seed=load.seed, noise=noise, faults=faults, measured=measured, check_every=1
    )  # raises when an invariant breaks, or a stream loses or doubles a token
    assert report.lost == 0
    assert report.finished + report.left + sum(report.refused.values()) == len(asked)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    box=BOXES,
    load=LOADS,
    moments_s=st.lists(st.floats(0.0, 12.0), min_size=1, max_size=12),
    measured=st.booleans(),
)
def test_operators_interrupt_whatever_runs(box, load, moments_s, measured):
    asks = (UnloadAsked, MeasureAsked, WarmUpAsked)
    told = [
        (at_s, asks[n % len(asks)](name=box.models[n // len(asks) % len(box.models)].name))
        for n, at_s in enumerate(moments_s)
    ]
    planned = schedule(load, [spec.name for spec in box.models])
    asked = requests_of(planned, box.models, chance=Chance(load.seed, Purpose.TIERS), best_effort_share=0.3)
    report = replay(asked, box, seed=load.seed, measured=measured, check_every=1, told=told)
    assert report.lost == 0
    assert report.finished + sum(report.refused.values()) == len(asked)
