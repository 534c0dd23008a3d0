"""What does deciding cost? The next iteration among 64 instances, one shadow validation, a whole admission on 8 x 16.

Process time, so that what else runs on this machine counts little; medians, and the 99th percentile.
"""

import random
import statistics
import time
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from llmhostd.bench.load import Load, schedule
from llmhostd.bench.schedule import Lengths
from llmhostd.compute.estimator import ProfiledEstimator
from llmhostd.compute.headroom import Agenda
from llmhostd.compute.iteration_draft import IterationPlan
from llmhostd.compute.iteration_plan import SchedulingPolicy, describe, next_plan
from llmhostd.compute.shadow_validation import ShadowPolicy, Verdict, validate
from llmhostd.compute.workload import InstanceLoad, NodeLoad, RequestLoad
from llmhostd.domain.actions import HostAction
from llmhostd.domain.events import HostEvent, RequestArrived
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import InstanceId, ModelName, RequestId
from llmhostd.domain.model import Slo
from llmhostd.domain.request import RequestShape, Tier
from llmhostd.host.core import HostMind
from llmhostd.simulator.box import complete, make_box
from llmhostd.simulator.chance import Chance, Purpose
from llmhostd.simulator.device import Physics
from llmhostd.simulator.faults import Faults, Misfortune
from llmhostd.simulator.minds import Minds
from llmhostd.simulator.roofline import Roofline
from llmhostd.simulator.workload import requests_of
from llmhostd.simulator.world import World

POLICY = SchedulingPolicy()
SLO = Slo(ttft_s=2.0, tpot_s=0.25)
NODES, INSTANCES = 8, 16
LOADS = {"light": (0.3, 0.1), "busy": (0.8, 0.15), "nearly full": (0.95, 0.3), "overload": (0.95, 0.9)}
"""How much of the device all decodes take, and the share of instances with prompts that wait."""


def _request(chance: random.Random, name: str, *, decoding: bool) -> RequestLoad:
    prompt, out = chance.randint(50, 2000), chance.randint(1, 200) if decoding else 0
    shape = RequestShape(
        id=RequestId(name), model=ModelName("m"), prompt_tokens=prompt, max_tokens=1024,
        tier=Tier.LATENCY_SENSITIVE, slo=SLO, arrived_s=-chance.uniform(0.0, 1.0 if not decoding else 30.0),
    )  # fmt: skip
    if not decoding:
        return RequestLoad(shape)
    ahead_s = chance.uniform(0.05, 1.0)
    return RequestLoad(shape, prompt + out - 1, out, ahead_s - SLO.tpot_s * out, -chance.uniform(0.0, 0.2))


def _node(chance: random.Random, instances: int, fill: float, waiting: float) -> NodeLoad:
    """Draw a node whose decodes fill this share of it."""
    loads = {}
    for k in range(instances):
        batch = [_request(chance, f"r{k}.{n}", decoding=True) for n in range(chance.randint(1, 16))]
        prompts = [_request(chance, f"p{k}", decoding=False)] if chance.random() < waiting else []
        requests = {one.shape.id: one for one in (*batch, *prompts)}
        loads[InstanceId(f"i{k}")] = InstanceLoad(InstanceId(f"i{k}"), _estimator(1.0), requests=requests)
    speed = sum(_decode_s(one) for one in loads.values()) / SLO.tpot_s / fill
    for one in loads.values():
        one.estimator = _estimator(speed)
    return NodeLoad(0.0, loads)


def _decode_s(one: InstanceLoad) -> float:
    batch = [request for request in one.requests.values() if request.decoding]
    context = sum(request.context_tokens for request in batch) // len(batch)
    return one.estimator.iteration_s(prefill=(), decode_batch=len(batch), decode_context=context)


def _estimator(speed: float) -> ProfiledEstimator:
    """Time a 500M model on a machine so many times as fast as two cores."""
    return ProfiledEstimator(complete(make_box(models=1, sizes=("500m",)), _faster(speed)).profiles[0])


def _faster(speed: float) -> Roofline:
    return Roofline(
        memory_bytes_per_s=22e9 * speed, operations_per_s=1.5e12 * speed, iteration_overhead_s=0.001 / speed
    )


def _advance(box: NodeLoad, agenda: Agenda, plan: IterationPlan, now: float) -> None:
    instance = box.instances[plan.instance_id]
    for row in plan.rows:
        request = instance.requests[row.request_id]
        request.computed_tokens += row.tokens
        request.said(int(row.sample), now)
    agenda.touch(plan.instance_id)


def _said(name: str, costs_s: list[float]) -> str:
    last = statistics.quantiles(costs_s, n=100)[-1]
    return f"{name}: median {statistics.median(costs_s) * 1e6:.0f} us, p99 {last * 1e6:.0f} us of {len(costs_s)}"


def test_choosing_the_next_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(1)
    for name, (fill, waiting) in {"decodes only": (0.8, 0.0), "with prompts": (0.8, 0.1)}.items():
        box = _node(chance, 64, fill, waiting)
        agenda, now, costs_s, explained_s = Agenda(box), 0.0, [], []
        next_plan(agenda, now, POLICY)
        for turn in range(3000):
            if waiting and turn % 20 == 0:  # somebody comes
                key = InstanceId(f"i{chance.randrange(64)}")
                newcomer = _request(chance, f"n{turn}", decoding=False)
                newcomer.shape = msgspec.structs.replace(newcomer.shape, arrived_s=now)
                box.instances[key].requests[newcomer.shape.id] = newcomer
                agenda.touch(key)
            began_s = time.process_time()
            plan = next_plan(agenda, now, POLICY)
            costs_s.append(time.process_time() - began_s)
            assert plan is not None
            began_s = time.process_time()
            describe(plan, agenda, now)
            explained_s.append(time.process_time() - began_s)
            now += plan.predicted_s
            _advance(box, agenda, plan, now)
            for one in box.instances[plan.instance_id].requests.copy().values():
                if one.tokens_out > 220:  # somebody ends
                    del box.instances[plan.instance_id].requests[one.shape.id]
        with capsys.disabled():
            print(f"\n64 instances, {_said(name, costs_s)}; saying why {statistics.median(explained_s) * 1e6:.0f} us")


def _validations(chance: random.Random, fill: float, waiting: float) -> Iterator[tuple[float, Verdict]]:
    for _ in range(NODES):
        box = _node(chance, INSTANCES, fill, waiting)
        for key in box.instances:
            newcomer = _request(chance, "new", decoding=False)
            began_s = time.process_time()
            verdict = validate(box, key, newcomer, 0.0, ShadowPolicy(), POLICY)
            yield time.process_time() - began_s, verdict


def test_one_shadow_validation(capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(2)
    for name, (fill, waiting) in LOADS.items():
        seen = list(_validations(chance, fill, waiting))
        accepted = sum(verdict.accepted for _, verdict in seen) / len(seen)
        with capsys.disabled():
            said = _said(name, [cost_s for cost_s, _ in seen])
            print(f"\n{NODES} nodes x {INSTANCES} instances, {said}; {accepted:.0%} accepted")


class TimedHost(HostMind):
    """A host mind that is timed while it admits requests or refuses them."""

    costs_s: list[float]
    began_measuring_s = 15.0

    def step(self, event: HostEvent, now: float) -> list[HostAction]:
        began_s = time.process_time()
        actions = super().step(event, now)
        if isinstance(event, RequestArrived) and now > self.began_measuring_s:
            self.costs_s.append(time.process_time() - began_s)
        return actions


@pytest.mark.parametrize("rate", [12.0, 24.0])
def test_a_whole_admission(rate: float, capsys: pytest.CaptureFixture[str]) -> None:
    """Routing, memory and validation, on a box of 8 nodes whose models are all loaded, 16 on each."""

    def host(nodes: Sequence[NodeSpec]) -> HostMind:
        mind = TimedHost(nodes)
        mind.costs_s = costs_s
        return mind

    costs_s: list[float] = []
    box = make_box(models=NODES * INSTANCES, sizes=("500m",), nodes=NODES, memory_bytes=64 << 30, slo=SLO)
    lengths = {"input_tokens": Lengths(first=100, last=1500), "output_tokens": Lengths(first=50, last=250)}
    names = [spec.name for spec in box.models]
    planned = schedule(Load(models=names, rate=rate, duration_s=45.0, zipf=0.0, seed=3, **lengths), names)
    asked = requests_of(planned, box.models, chance=Chance(3, Purpose.TIERS), best_effort_share=0.0)
    world = World(
        complete(box, _faster(4.0)), asked, seed=3, physics=Physics(), misfortune=Misfortune(Faults(), 3),
        check_every=1 << 30, check_counts_every=1 << 30, minds=Minds(host=host),
    )  # fmt: skip
    world.run()
    busy = world.computed_s / world.now / NODES
    with capsys.disabled():
        print(f"\n{rate:.0f} requests/s on {NODES} nodes, {busy:.0%} busy: {_said('one admission', costs_s)}")
