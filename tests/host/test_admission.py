"""Is a request served, made to wait, or refused at once?"""

import msgspec
import pytest
from boxes import MIB, SLO, Box, adapter, kinds, model, node, only, profile, row, shape

from llmhostd.compute.prior import PriorPolicy
from llmhostd.domain import events, reports
from llmhostd.domain.actions import Refusal, RefuseRequest
from llmhostd.domain.commands import LoadInstance, SubmitRequest
from llmhostd.domain.model import ModelState, Slo
from llmhostd.domain.request import Tier
from llmhostd.domain.start import StartSeen
from llmhostd.host.budget import BudgetPolicy
from llmhostd.host.hope import HopePolicy
from llmhostd.host.policies import HostPolicies


def test_a_cold_model_is_loaded_and_the_wait_is_not_held_against_it():
    box = Box()
    load, submit = box.ask()
    assert (load.model, load.target, load.profile) == ("wren", ModelState.WARM, profile())
    assert submit.instance_id == load.instance_id
    assert submit.request.grace_s == 0.5
    assert "new instance" in submit.because


def test_a_second_request_joins_the_instance_that_loads():
    box = Box()
    instance_id = only(LoadInstance, box.ask()).instance_id
    submit = only(SubmitRequest, box.ask(after=0.2))
    assert submit.instance_id == instance_id
    assert submit.request.grace_s == 0.3


def test_a_resident_instance_gives_no_grace():
    box = Box()
    instance_id = box.load()
    submit = only(SubmitRequest, box.ask())
    assert (submit.instance_id, submit.request.grace_s) == (instance_id, 0.0)


def test_a_request_that_would_be_late_is_told_so_and_when_to_come_back():
    box = Box()
    box.load()
    refusal = only(RefuseRequest, box.ask(prompt=20_000))
    assert refusal.refusal is Refusal.OVERLOADED
    assert refusal.expected_ttft_s > 4.0
    assert refusal.retry_after_s == refusal.expected_ttft_s - SLO.ttft_s
    assert not box.mind.fleet.requests


def test_no_newcomer_makes_others_late():
    box = Box()
    box.load()
    admitted = 0
    while not kinds(box.ask(prompt=1000)).count("RefuseRequest"):
        admitted += 1
    assert 2 < admitted < 12, "1,000 tokens take 0.2 s of the 2 s that each has"


def test_an_unknown_or_removed_model_is_not_served():
    box = Box()
    assert only(RefuseRequest, box.ask("wrem")).refusal is Refusal.MODEL_BROKEN
    box(events.ModelRemoved(name="wren"))
    assert only(RefuseRequest, box.ask("wren")).refusal is Refusal.MODEL_BROKEN


def test_whoever_comes_before_a_worker_was_ever_up_waits_for_it():
    box = Box(node("cpu0", 256), node("cpu1", 4096), up=())
    assert box.ask(after=1.0) == []
    assert box(reports.NodeUp(node_id="cpu0", memory_bytes=256 * MIB), 0.5) == [], "it is too small"
    assert box.ask() == [], "another node is expected, which is not"
    actions = box(reports.NodeUp(node_id="cpu1", memory_bytes=4096 * MIB), 3.0)
    assert [one.request.id for one in actions if isinstance(one, SubmitRequest)] == ["req-1", "req-2"]


def test_nobody_waits_for_ever_for_a_worker_that_never_comes_up():
    box = Box(up=())
    box.ask()
    assert box.tick(4.9) == []
    refusal = only(RefuseRequest, box.tick(0.2))
    assert (refusal.refusal, refusal.because) == (Refusal.UNAVAILABLE, "no node is up")
    assert box.ask(after=2.0) == [], "it may well be up at last"
    assert only(RefuseRequest, box.ask(after=30.0)).retry_after_s > 30.0


def test_who_asks_for_an_adapter_hears_which_nodes_are_down():
    base, poet = adapter("poet", model("wren"))
    box = Box(node("gpu0"), node("cpu0"), models=(base, poet), up=("gpu0",))
    refusal = only(RefuseRequest, box.ask("poet", after=60.0))
    assert (refusal.refusal, refusal.because) == (
        Refusal.UNAVAILABLE,
        "no node is up, of those that compute adapters",
    )
    assert "SubmitRequest" in kinds(box.ask("wren"))


def test_what_never_fits_is_refused_for_good():
    box = Box(node(memory_mib=256))
    refusal = only(RefuseRequest, box.ask())
    assert refusal.refusal is Refusal.TOO_LARGE
    assert "never fits" in refusal.because


def test_what_fits_only_on_a_node_that_is_down_waits_for_it_and_no_longer():
    box = Box(node("cpu0", 256), node("cpu1", 4096))
    box(reports.NodeDown(node_id="cpu1", suspect=None, because="killed"))
    assert box.ask() == []
    assert box.tick(4.9) == []
    refusal = only(RefuseRequest, box.tick(0.2))
    assert refusal.refusal is Refusal.NO_MEMORY
    assert not box.mind.fleet.requests


def test_who_waited_for_a_restart_is_not_late_for_it():
    box = Box()
    box(reports.NodeDown(node_id="cpu0", suspect=None, because="killed"))
    assert box.ask() == []
    submit = only(SubmitRequest, box(reports.NodeUp(node_id="cpu0", memory_bytes=4096 * MIB), 2.5))
    assert submit.request.grace_s == pytest.approx(2.5 + 0.5)


def test_a_node_that_takes_long_to_come_back_is_not_waited_for():
    box = Box()
    down = reports.NodeDown(node_id="cpu0", suspect=None, because="killed")
    box(down)
    box(reports.NodeUp(node_id="cpu0", memory_bytes=4096 * MIB), 30.0)
    box(down, 1.0)
    refusal = only(RefuseRequest, box.ask())
    assert (refusal.refusal, refusal.retry_after_s) == (Refusal.UNAVAILABLE, 30.0)
    # It learns: half of what it took before, and half of what it took now.
    box(reports.NodeUp(node_id="cpu0", memory_bytes=4096 * MIB), 1.0)
    box(down, 1.0)
    assert only(RefuseRequest, box.ask()).retry_after_s == pytest.approx(15.5)


def test_best_effort_waits_for_a_node_however_long_it_is_down():
    box = Box()
    box(reports.NodeDown(node_id="cpu0", suspect=None, because="killed"))
    assert box.ask(tier=Tier.BEST_EFFORT) == []
    assert box.tick(500.0) == []
    assert only(SubmitRequest, box(reports.NodeUp(node_id="cpu0", memory_bytes=4096 * MIB))).request.id == "req-1"


def test_a_caller_who_waits_for_a_restart_may_leave():
    box = Box()
    box(reports.NodeDown(node_id="cpu0", suspect=None, because="killed"))
    box.ask()
    assert box(events.RequestCancelled(request_id="req-1")) == []
    assert not box.mind.fleet.requests


def test_memory_that_others_use_too_long_is_refused_with_the_estimate():
    box = Box(node(memory_mib=500))
    box.ask("wren")
    refusal = only(RefuseRequest, box.ask("owl", slo=Slo(ttft_s=1.0, tpot_s=0.2)))
    assert refusal.refusal is Refusal.NO_MEMORY
    # Half a second to load, 0.1 s to pack and the prompt, and 50 tokens of 20.5 ms, all 10 % slower.
    assert refusal.retry_after_s == pytest.approx(0.5 + 1.1 * (0.04 + 50 * 0.0205), abs=0.05)
    assert refusal.expected_ttft_s == refusal.retry_after_s
    assert "come free in" in refusal.because


def test_memory_that_comes_free_in_time_is_waited_for_without_taking_it_from_anybody():
    box = Box(node(memory_mib=500))
    instance_id = only(LoadInstance, box.ask("wren")).instance_id
    box.report(instance_id, ModelState.WARM)
    assert box.ask("owl") == []
    assert box.iterate(instance_id, row("req-1", prefilled=100, tokens=1)) == []
    assert kinds(box.finish(instance_id, "req-1")) == ["RestInstance"]
    load, submit = box.report(instance_id, ModelState.WARM)
    assert (load.model, submit.request.id) == ("owl", "req-2")


def test_memory_that_does_not_come_free_in_time_is_not_waited_for_any_longer():
    box = Box(node(memory_mib=500))
    instance_id = only(LoadInstance, box.ask("wren", most=500)).instance_id
    box.report(instance_id, ModelState.WARM)
    assert box.ask("owl") == []
    for _ in range(19):
        assert box.iterate(instance_id, row("req-1", tokens=1), after=0.1) == []
    refusal = only(RefuseRequest, box.tick(after=0.1))
    assert (refusal.request_id, refusal.refusal) == ("req-2", Refusal.NO_MEMORY)
    assert list(box.mind.fleet.requests) == ["req-1"]


def test_nobody_waits_for_memory_where_that_is_switched_off():
    box = Box(node(memory_mib=500), policies=HostPolicies(hope=HopePolicy(wait_for_memory=False)))
    box.ask("wren")
    assert only(RefuseRequest, box.ask("owl")).retry_after_s == 2.0


def test_keys_and_values_count_as_memory():
    box = Box(node(memory_mib=330))
    box.load()
    assert only(SubmitRequest, box.ask(prompt=4_000, slo=Slo(ttft_s=60.0, tpot_s=1.0)))
    assert box.mind.fleet.nodes["cpu0"].promised.free_bytes == 10 * MIB - (4_000 + 50) * 1024 * 5 // 4
    assert box.ask(prompt=8_000, slo=Slo(ttft_s=60.0, tpot_s=1.0)) == [], "it waits for the other to end"
    (instance_id,) = box.mind.fleet.instances
    assert only(SubmitRequest, box.finish(instance_id, "req-1")).request.id == "req-2"


def test_an_unmeasured_model_is_loaded_measured_and_then_asked():
    box = Box(profiles=())
    actions = box.ask()
    load = only(LoadInstance, actions)
    assert load.profile is None
    assert only(SubmitRequest, actions).instance_id == load.instance_id, "its node must know that somebody waits"
    assert "ready in 5.7 s, 5.0 s of it to measure what this hardware never ran" in load.because
    box.report(load.instance_id, ModelState.WARM, after=0.6)
    box(reports.ProfileProgressed(node_id="cpu0", instance_id=load.instance_id, done=3, total=9))
    assert box.mind.snapshot(box.now).nodes[0].profiling == "wren 3/9"
    measured = reports.ProfileMeasured(node_id="cpu0", instance_id=load.instance_id, profile=profile())
    box(measured, after=8.0)
    (request,) = box.mind.snapshot(box.now).requests
    assert request.headroom_s == 2.0, "the caller waits for the measurement, but is not late because of it"


def test_models_of_one_shape_share_a_profile():
    box = Box(models=("wren", "owl", model("big", shape(layers=40, weight_mib=900))))
    assert only(LoadInstance, box.ask("owl")).profile == profile()
    assert not only(LoadInstance, box.ask("big")).profile.measured


def test_waits_for_a_measurement_where_estimates_may_not_serve():
    policies = HostPolicies(prior=PriorPolicy(serve_unmeasured=False))
    box = Box(models=("wren", model("big", shape(layers=40, weight_mib=900))), policies=policies)
    assert only(LoadInstance, box.ask("big")).profile is None


def test_an_estimate_is_corrected_and_never_replaces_a_measurement():
    big = model("big", shape(layers=40, weight_mib=900))
    box = Box(models=("wren", big))
    load = only(LoadInstance, box.ask("big"))
    fleet = box.mind.fleet

    def reported(known):
        box(reports.ProfileMeasured(node_id="cpu0", instance_id=load.instance_id, profile=known))
        return fleet.profile_of(fleet.instances[load.instance_id])

    corrected = msgspec.structs.replace(load.profile, decode_correction=0.7)
    box(reports.ProfileProgressed(node_id="cpu0", instance_id=load.instance_id, done=1, total=9))
    assert reported(corrected) == corrected
    assert fleet.instances[load.instance_id].measuring == "1/9"
    measured = profile(big.shape)
    assert reported(measured) == measured
    assert reported(corrected) == measured


def test_what_a_node_learns_is_no_news_to_others_of_its_hardware():
    box = Box(node("cpu0"), node("cpu1"))
    fleet = box.mind.fleet
    known = fleet.models["wren"].spec.shape
    seen = StartSeen(
        model="wren", node_id="cpu0", hardware_key="test", shape_key=known.key, weights=known.weights,
        layers=known.architecture.layers, weight_bytes=known.weight_bytes, pack_s=0.9,
    )  # fmt: skip
    box(events.StartsRemembered(starts=(seen,)))
    loads = [each for _ in range(4) for each in box.ask(prompt=2500) if isinstance(each, LoadInstance)]
    here, there = (fleet.instances[each.instance_id] for each in loads)
    assert loads[0].profile.first_run_s == 0.9, "the host foretells it by starts, not by what was measured once"
    corrected = msgspec.structs.replace(loads[0].profile, decode_correction=1.2)
    told = box(reports.ProfileMeasured(node_id=here.node_id, instance_id=here.id, profile=corrected))
    assert not told
    assert fleet.profile_of(here) == msgspec.structs.replace(profile(), decode_correction=1.2)
    assert fleet.profile_of(there) == profile()


def test_two_nodes_serve_more_than_one():
    box = Box(node("cpu0"), node("cpu1"))
    asked = [only(SubmitRequest, box.ask(prompt=2500)) for _ in range(4)]
    assert [each.node_id for each in asked] == ["cpu0", "cpu0", "cpu1", "cpu1"]


def test_the_largest_batch_is_asked_first():
    box = Box(node("cpu0"), node("cpu1"))
    first, second = (only(SubmitRequest, box.ask(prompt=6000)) for _ in range(2))
    assert first.node_id != second.node_id
    for submit in (first, second):
        box.report(submit.instance_id, ModelState.WARM, after=0.5)
        box.report(submit.instance_id, ModelState.RESIDENT)
        box.iterate(submit.instance_id, row(submit.request.id, prefilled=6000, tokens=1))
    only(SubmitRequest, box.ask())
    box.finish(first.instance_id, first.request.id)
    loads = box.mind.fleet.instances
    busiest = max(loads.values(), key=lambda each: len(each.load.requests))
    assert only(SubmitRequest, box.ask()).instance_id == busiest.id


def test_best_effort_waits_and_is_never_refused():
    box = Box()
    box.load()
    box.decided.clear()
    for _ in range(80):
        box.ask(tier=Tier.BEST_EFFORT, prompt=4000)
    assert kinds(box.decided) == ["SubmitRequest"] * 32
    box.finish(box.decided[0].instance_id, "req-1", "req-2")
    assert [each.request.id for each in box.decided[32:]] == ["req-33", "req-34"]


def test_best_effort_waits_while_people_wait_for_memory():
    box = Box(node(memory_mib=380))
    first = box.load("wren")
    asked = box.ask("owl")
    assert kinds(asked) == ["RestInstance"]
    assert box.ask("owl", tier=Tier.BEST_EFFORT) == []
    decided = box.report(first, ModelState.WARM)
    assert [each.request.id for each in decided if isinstance(each, SubmitRequest)] == ["req-1", "req-2"]


def test_a_caller_who_leaves_is_forgotten_wherever_the_request_is():
    box = Box(node(memory_mib=380))
    first = box.load("wren")
    box.ask("wren")
    assert kinds(box(events.RequestCancelled(request_id="req-1"))) == ["CancelRequest"]
    box.ask("owl")
    assert kinds(box(events.RequestCancelled(request_id="req-2"))) == []
    box.ask("wren", tier=Tier.BEST_EFFORT)
    assert kinds(box(events.RequestCancelled(request_id="req-3"))) in ([], ["CancelRequest"])
    assert not box.mind.fleet.requests
    assert box(events.RequestCancelled(request_id="req-3")) == []
    assert box.iterate(first, row("req-1", tokens=1)) == [], "late news of a request that left"


@pytest.mark.parametrize(("copy_s_per_byte", "accepted"), [(0.0, True), (1e-7, True), (1e-6, False)])
def test_a_pool_that_must_grow_holds_its_instance_up_while_it_grows(copy_s_per_byte, accepted):
    """4 MiB of keys and values are copied: in no time, in 0.4 s, or in 4 s where 2 s were promised."""
    budget = BudgetPolicy(kv_copy_s_per_byte=copy_s_per_byte)
    box = Box(policies=HostPolicies(budget=budget))
    instance_id = box.load()
    grown = reports.InstanceReported(
        node_id="cpu0", instance_id=instance_id, state=ModelState.RESIDENT, held_bytes=320 * MIB, kv_bytes=4 * MIB,
        kv_used_bytes=0,
    )  # fmt: skip
    box(grown)
    assert kinds(box.ask(prompt=1000)) == ["SubmitRequest"], "it fits into the pool"
    assert (kinds(box.ask(prompt=3500)) == ["SubmitRequest"]) is accepted
