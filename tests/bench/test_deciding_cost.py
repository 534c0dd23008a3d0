"""What does deciding cost? The next iteration among 64 instances, and one shadow validation on nodes of 16.

Process time, so that what else runs on this machine counts little; medians, and the 99th percentile.
"""

import random
import statistics
import time
from collections.abc import Iterator

import msgspec
import pytest

from llmhostd.compute.estimator import ProfiledEstimator
from llmhostd.compute.headroom import Agenda
from llmhostd.compute.iteration_draft import IterationPlan
from llmhostd.compute.iteration_plan import SchedulingPolicy, describe, next_plan
from llmhostd.compute.shadow_validation import ShadowPolicy, Verdict, validate
from llmhostd.compute.workload import InstanceLoad, NodeLoad, RequestLoad
from llmhostd.domain.ids import InstanceId, ModelName, RequestId
from llmhostd.domain.model import Slo
from llmhostd.domain.request import RequestShape, Tier
from llmhostd.simulator.box import complete, make_box
from llmhostd.simulator.roofline import Roofline

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
    roofline = Roofline(
        memory_bytes_per_s=22e9 * speed, operations_per_s=1.5e12 * speed, iteration_overhead_s=0.001 / speed
    )
    return ProfiledEstimator(complete(make_box(models=1, sizes=("500m",)), roofline).profiles[0])


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
