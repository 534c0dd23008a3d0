"""Do the baselines load, fill, queue, drop and let go as SLINFER §IX-A says they do?"""

import pytest
from experiment_files import experiment

from llmhostd.domain.actions import RefuseRequest
from llmhostd.domain.commands import CancelRequest, LoadInstance, SubmitRequest, UnloadInstance
from llmhostd.domain.events import ClockTicked, ModelAdded, ProfileKnown, RequestArrived, RequestCancelled
from llmhostd.domain.hardware import NodeKind, NodeSpec
from llmhostd.domain.model import ModelSpec, ModelState, Slo
from llmhostd.domain.profile import DecodeSample, PrefillSample, Profile
from llmhostd.domain.reports import InstanceReported, IterationReported, NodeDown, NodeUp, RequestReturned, RowReport
from llmhostd.domain.request import FinishReason, RequestShape, Tier
from llmhostd.simulator.baselines import BaselinePolicy, ExclusiveMind
from llmhostd.simulator.experiment import run
from llmhostd.simulator.population import shape_of

SHAPE = shape_of("7b")
SLO = Slo(ttft_s=2.0, tpot_s=0.25)
CPU, GPU = NodeKind.CPU, NodeKind.GPU


def spec(name, kind):
    return NodeSpec(id=name, engine="profiled", hardware_key=str(kind), cores=(), memory_bytes=1 << 36, kind=kind)


def profile(kind):
    return Profile(
        shape_key=SHAPE.key, hardware_key=str(kind), load_s=1.0, first_run_s=0.0, resident_bytes=1, warm_bytes=1,
        prefill=(PrefillSample(chunk_tokens=1, past_tokens=0, seconds=0.1),),
        decode=(DecodeSample(batch=1, context_tokens=1, seconds=0.1),),
    )  # fmt: skip


class Box:
    """A mind on nodes that are up, and what it said."""

    def __init__(self, *nodes, kinds=(CPU, GPU), limit=2, width=2):
        keys = [(SHAPE.key, "cpu"), (SHAPE.key, "gpu")]
        policy = BaselinePolicy(dict.fromkeys(keys, limit), dict.fromkeys(keys, width), kinds, keep_alive_s=1.0)
        self.mind = ExclusiveMind([spec(f"{kind}{n}", kind) for n, kind in enumerate(nodes)], policy)
        for kind in (CPU, GPU):
            self.mind.step(ProfileKnown(profile=profile(kind)), 0.0)
        for n, kind in enumerate(nodes):
            self.mind.step(NodeUp(node_id=f"{kind}{n}", memory_bytes=1 << 36), 0.0)

    def ask(self, name, model="a", at=0.0, arrived=None):
        self.mind.step(ModelAdded(spec=ModelSpec(name=model, shape=SHAPE, slo=SLO)), at)
        request = RequestShape(
            id=name, model=model, prompt_tokens=9, max_tokens=99, tier=Tier.LATENCY_SENSITIVE, slo=SLO,
            arrived_s=at if arrived is None else arrived,
        )  # fmt: skip
        return said(self.mind.step(RequestArrived(request=request), at))

    def finish(self, name, instance, at):
        row = RowReport(request_id=name, tokens=(0,), finish=FinishReason.STOP)
        node = instance.split("@")[1].split("#")[0]
        report = IterationReported(
            node_id=node, instance_id=instance, started_s=at, duration_s=0.1, predicted_s=0.1, rows=(row,), because=""
        )
        return said(self.mind.step(report, at))

    def gone(self, instance, at):
        node = instance.split("@")[1].split("#")[0]
        report = InstanceReported(
            node_id=node, instance_id=instance, state=ModelState.COLD, held_bytes=0, kv_bytes=0, kv_used_bytes=0
        )
        return said(self.mind.step(report, at))

    def tick(self, at):
        return said(self.mind.step(ClockTicked(), at))


def said(actions):
    """What was decided, without its reasons."""
    words = []
    for action in actions:
        match action:
            case LoadInstance():
                words.append(f"load {action.instance_id}")
            case SubmitRequest():
                words.append(f"submit {action.request.id} to {action.instance_id}, grace {action.request.grace_s:g}")
            case UnloadInstance():
                words.append(f"unload {action.instance_id}")
            case RefuseRequest():
                words.append(f"refuse {action.request_id}")
            case CancelRequest():
                words.append(f"cancel {action.request_id}")
    return words


def test_an_instance_is_filled_to_its_limit_then_the_next_is_loaded_then_requests_wait():
    box = Box(GPU, GPU, kinds=(GPU,))
    assert box.ask("r1") == ["load a@gpu0#1", "submit r1 to a@gpu0#1, grace 1"]
    assert box.ask("r2", at=0.4) == ["submit r2 to a@gpu0#1, grace 0.6"]
    assert box.ask("r3", at=3.0) == ["load a@gpu1#2", "submit r3 to a@gpu1#2, grace 1"]
    assert box.ask("r4", at=3.0) == ["submit r4 to a@gpu1#2, grace 1"]
    assert box.ask("r5", at=4.0) == []
    assert box.finish("r2", "a@gpu0#1", at=5.0) == ["submit r5 to a@gpu0#1, grace 0"]


def test_whoever_waited_longer_than_the_ttft_slo_is_dropped():
    box = Box(GPU, kinds=(GPU,), limit=1)
    box.ask("r1")
    assert box.ask("r2", at=1.0) == []
    assert box.tick(at=3.0) == []
    assert box.tick(at=3.01) == ["refuse r2"]


def test_an_idle_instance_is_kept_for_the_keep_alive_and_its_node_is_free_when_it_is_gone():
    box = Box(GPU, kinds=(GPU,))
    box.ask("r1", "a")
    assert box.finish("r1", "a@gpu0#1", at=5.0) == []
    assert box.ask("r2", "b", at=5.5) == [], "kept alive, although somebody else waits: what sllm wastes"
    assert box.tick(at=6.0) == ["unload a@gpu0#1"]
    assert box.ask("r3", "a", at=6.0) == [], "it is leaving"
    assert box.gone("a@gpu0#1", at=6.1) == ["load b@gpu0#2", "submit r2 to b@gpu0#2, grace 1"]


def test_cpu_nodes_come_first_where_they_are_used():
    assert Box(GPU, CPU).ask("r1")[0] == "load a@cpu1#1"
    assert Box(GPU, CPU, kinds=(GPU,)).ask("r1")[0] == "load a@gpu0#1"


def test_halves_are_packed_and_what_needs_a_whole_node_waits_for_one():
    box = Box(GPU, GPU, kinds=(GPU,), width=1)
    loads = [box.ask(f"r{n}", model)[0] for n, model in enumerate("abc")]
    assert loads == ["load a@gpu0#1", "load b@gpu0#2", "load c@gpu1#3"]
    whole = Box(GPU, kinds=(GPU,), width=2)
    assert whole.ask("r1", "a")[0] == "load a@gpu0#1"
    assert whole.ask("r2", "b") == []


def test_two_loads_on_one_node_come_one_after_the_other():
    box = Box(GPU, kinds=(GPU,), width=1)
    box.ask("r1", "a")
    assert box.ask("r2", "b")[1] == "submit r2 to b@gpu0#2, grace 2"


def test_what_a_node_loses_or_gives_back_goes_elsewhere_with_its_tokens():
    box = Box(GPU, GPU, kinds=(GPU,))
    box.ask("r1")
    token = IterationReported(
        node_id="gpu0", instance_id="a@gpu0#1", started_s=1.0, duration_s=0.1, predicted_s=0.1, because="",
        rows=(RowReport(request_id="r1", tokens=(0,)),),
    )  # fmt: skip
    box.mind.step(token, 1.1)
    actions = box.mind.step(NodeDown(node_id="gpu0", suspect=None, because="killed"), 2.0)
    assert said(actions) == ["load a@gpu1#2", "submit r1 to a@gpu1#2, grace 1"]
    assert (actions[1].request.tokens_out, actions[1].request.first_token_s) == (1, 1.1)
    assert said(box.mind.step(RequestReturned(node_id="gpu1", request_id="r1", because="no room"), 3.0)) == []
    assert box.tick(at=3.1) == ["submit r1 to a@gpu1#2, grace 1"]


def test_who_leaves_makes_room():
    box = Box(GPU, kinds=(GPU,), limit=1)
    box.ask("r1")
    box.ask("r2", at=0.5)
    actions = box.mind.step(RequestCancelled(request_id="r1"), 1.5)
    assert said(actions) == ["cancel r1", "submit r2 to a@gpu0#1, grace 0"]


def test_an_unknown_model_is_refused():
    box = Box(GPU)
    stranger = RequestShape(
        id="r", model="x", prompt_tokens=1, max_tokens=1, tier=Tier.LATENCY_SENSITIVE, slo=SLO, arrived_s=0.0
    )
    assert said(box.mind.step(RequestArrived(request=stranger), 0.0)) == ["refuse r"]


@pytest.mark.parametrize(("policy", "cpu", "gpu"), [("sllm", 0.0, 1.0), ("sllm+c", 1.0, 0.0), ("sllm+c+s", 1.0, 0.0)])
def test_an_exclusive_run_is_what_a_person_computes(tmp_path, policy, cpu, gpu):
    """One prompt of 1,024 tokens and four decodes, twice; the node is used from the first arrival to the last."""
    rows = [(0.0, 0, 1024, 5), (10.0, 0, 1024, 5)]
    outcome = run(experiment(tmp_path, *rows, cluster="1cpu+1gpu", policy=policy))
    assert (outcome.requests, outcome.slo_met, outcome.dropped, outcome.cold_starts) == (2, 2, 0, 2)
    prefill_s, load_s = (0.09, 1.0) if policy == "sllm" else (0.5, 0.0)
    assert outcome.ttft_s.p50 == pytest.approx(load_s + prefill_s, abs=0.001)
    decode_s = 0.0143 if policy == "sllm" else 0.0614
    assert outcome.tpot_s.p50 == pytest.approx(decode_s, abs=0.0005)
    served_s = load_s + prefill_s + 4 * decode_s
    used = (served_s + 1.0) / 10.0
    assert (outcome.nodes_used.cpu, outcome.nodes_used.gpu) == pytest.approx((cpu * used, gpu * used), abs=0.03)
    speed = outcome.decode_tokens_per_node_s
    assert (speed.cpu, speed.gpu) == pytest.approx((cpu * 4 / (used * 10), gpu * 4 / (used * 10)), rel=0.1)
