"""Which instances exist, and who gives way when memory is short?"""

import pytest
from boxes import MIB, Box, kinds, model, node, only, profile, row, shape

from llmhostd.domain import events, reports
from llmhostd.domain.actions import Refusal, RefuseRequest
from llmhostd.domain.commands import LoadInstance, RecallRequest, RestInstance, SubmitRequest, UnloadInstance
from llmhostd.domain.model import ModelState, Slo
from llmhostd.domain.request import Tier
from llmhostd.host.instance import MOVES
from llmhostd.host.keep_alive import KeepAlivePolicy
from llmhostd.host.policies import HostPolicies
from llmhostd.memory.ledger import Purpose

SHORT = HostPolicies(keep_alive=KeepAlivePolicy(per_reload=600.0))
"""Shapes take 0.1 s to pack and 0.5 s to load: kept for 60 s and for 360 s."""
THREE = ("wren", "owl", "rook")


def test_an_idle_instance_goes_back_to_warm_and_then_goes():
    box = Box(policies=SHORT)
    instance_id = box.load()
    assert box.tick(after=59.0) == []
    rest = only(RestInstance, box.tick(after=2.0))
    assert rest.instance_id == instance_id
    assert rest.because == "unused for 61 s; to pack its weights takes 0.10 s"
    box.report(instance_id, ModelState.WARM, after=0.5)
    assert box.tick(after=290.0) == []
    assert only(UnloadInstance, box.tick(after=100.0)).instance_id == instance_id
    box.report(instance_id, ModelState.COLD)
    assert not box.mind.fleet.instances
    assert box.mind.fleet.nodes["cpu0"].held.owned_bytes == 0


@pytest.mark.parametrize(
    ("load_s", "first_run_s", "resident_s", "warm_s"),
    [(1.0, 0.4, 240.0, 840.0), (0.01, 0.0, 30.0, 30.0), (8.0, 2.0, 1200.0, 3600.0)],
)
def test_the_longer_a_reload_the_longer_it_is_kept(load_s, first_run_s, resident_s, warm_s):
    policy = KeepAlivePolicy()
    assert policy.resident_s(first_run_s) == resident_s
    assert policy.warm_s(load_s + first_run_s) == warm_s


def test_a_fixed_keep_alive_unloads_at_once():
    box = Box(policies=HostPolicies(keep_alive=KeepAlivePolicy(keep_alive_s=1.0)))
    instance_id = box.load()
    assert box.tick(after=0.9) == []
    assert only(UnloadInstance, box.tick(after=0.2)).instance_id == instance_id


@pytest.mark.parametrize(
    ("name", "spare_gpu", "kept_s"), [("gpu0", 0.1, 1.0), ("gpu0", 1.0, 10.0), ("cpu0", 0.1, 10.0)]
)
def test_a_gpu_that_serves_nobody_is_given_up_sooner(name, spare_gpu, kept_s):
    policy = KeepAlivePolicy(keep_alive_s=10.0, spare_gpu=spare_gpu)
    box = Box(node(name), policies=HostPolicies(keep_alive=policy))
    instance_id = box.load()
    assert box.tick(after=kept_s - 0.1) == []
    assert only(UnloadInstance, box.tick(after=0.2)).instance_id == instance_id


def test_beside_others_who_are_served_the_idle_stay_on_a_gpu():
    policy = KeepAlivePolicy(keep_alive_s=10.0, spare_gpu=0.1)
    box = Box(node("gpu0"), policies=HostPolicies(keep_alive=policy))
    idle, busy = box.load("wren"), box.load("owl")
    box.ask("owl")
    assert box.tick(after=9.0) == []
    box.finish(busy, "req-1")
    assert {each.instance_id for each in box.tick(after=0.5)} == {idle}, "the other one was used until now"


def test_what_is_being_measured_is_not_idle():
    box = Box(policies=HostPolicies(keep_alive=KeepAlivePolicy(keep_alive_s=1.0)))
    instance_id = box.load()

    def progress(done):
        return reports.ProfileProgressed(node_id="cpu0", instance_id=instance_id, done=done, total=9)

    box(progress(3), after=0.5)
    assert box.tick(after=60.0) == []
    box(progress(9))
    assert box.tick() == []
    box(reports.ProfileMeasured(node_id="cpu0", instance_id=instance_id, profile=profile()))
    assert kinds(box.tick()) == ["UnloadInstance"]


def test_using_an_instance_keeps_it():
    box = Box(policies=SHORT)
    instance_id = box.load()
    box.ask(after=50.0)
    assert box.tick(after=70.0) == [], "it runs a request"
    box.finish(instance_id, "req-1")
    assert box.tick(after=50.0) == []
    assert kinds(box.tick(after=20.0)) == ["RestInstance"]


def test_the_least_recently_used_gives_way_and_memory_is_used_only_once_it_is_free():
    box = Box(node(memory_mib=720), models=THREE)
    first, second = box.load("wren"), box.load("owl")
    box.ask("wren", after=1.0)
    box.finish(first, "req-1")
    asked = box.ask("rook")
    assert kinds(asked) == ["RestInstance"]
    assert asked[0].instance_id == second
    assert asked[0].because.startswith("least recently used (1 s); rook needs memory for req-2")
    loaded = box.report(second, ModelState.WARM, after=0.4)
    assert kinds(loaded) == ["LoadInstance", "SubmitRequest"]


def test_where_resting_is_not_enough_the_warm_go_too():
    big = model("big", shape(layers=40, weight_mib=600))
    box = Box(node(memory_mib=745), models=(*THREE, big), profiles=(profile(), profile(big.shape, resident_mib=720)))
    first, second = box.load("wren"), box.load("owl")
    asked = box.ask("big")
    assert kinds(asked) == ["UnloadInstance", "RestInstance"], "20 MiB of one may stay"
    assert [each.instance_id for each in asked] == [first, second]
    assert kinds(box.report(first, ModelState.COLD)) == []
    assert kinds(box.report(second, ModelState.WARM)) == ["LoadInstance", "SubmitRequest"]


def test_a_request_that_comes_back_while_its_model_rests_waits_for_it_there():
    box = Box(policies=SHORT)
    instance_id = box.load()
    box.tick(after=61.0)
    submit = only(SubmitRequest, box.ask())
    assert (submit.instance_id, submit.request.grace_s) == (instance_id, 0.5)
    assert box.state(instance_id) is ModelState.LOADING
    box(reports.RestCalledOff(node_id="cpu0", instance_id=instance_id, because="req-1 came before its rest began"))
    assert box.state(instance_id) is ModelState.RESIDENT


def test_a_rest_that_was_called_off_is_over_even_if_whoever_came_left_again():
    box = Box(policies=SHORT)
    instance_id = box.load()
    box.tick(after=61.0)
    box.ask()
    box(events.RequestCancelled(request_id="req-1"))
    box(reports.RestCalledOff(node_id="cpu0", instance_id=instance_id, because="req-1 came before its rest began"))
    assert box.state(instance_id) is ModelState.RESIDENT
    assert only(RestInstance, box.tick(after=61.0)).instance_id == instance_id


def test_a_report_that_overtook_a_rest_does_not_undo_it():
    box = Box(policies=SHORT)
    instance_id = box.load()
    box.tick(after=61.0)
    box.report(instance_id, ModelState.RESIDENT)
    assert box.state(instance_id) is ModelState.LOADING
    box.report(instance_id, ModelState.WARM)
    assert box.state(instance_id) is ModelState.WARM


def test_best_effort_makes_room_for_people_and_goes_on_after():
    box = Box(node(memory_mib=380))
    first = box.load("wren")
    box.ask("wren", tier=Tier.BEST_EFFORT)
    box.iterate(first, row("req-1", prefilled=100, tokens=1))
    asked = box.ask("owl")
    assert kinds(asked) == ["RecallRequest", "RestInstance"]
    assert only(RecallRequest, asked).request_id == "req-1"
    box.iterate(first, row("req-1", tokens=1))
    box(reports.RequestReturned(node_id="cpu0", request_id="req-1", because="recalled"))
    second = only(LoadInstance, box.report(first, ModelState.WARM)).instance_id
    box.report(second, ModelState.WARM)
    box.report(second, ModelState.RESIDENT)
    assert kinds(box.tick()) == [], "owl still runs"
    assert kinds(box.finish(second, "req-2")) == ["RestInstance"]
    again = only(SubmitRequest, box.report(second, ModelState.WARM))
    assert (again.request.id, again.request.tokens_out) == ("req-1", 2), "with the token of its last iteration"


def test_people_do_not_make_room_for_people():
    box = Box(node(memory_mib=380))
    box.load("wren")
    box.ask("wren", tier=Tier.BEST_EFFORT)
    box.ask("wren")
    assert only(RefuseRequest, box.ask("owl", slo=Slo(ttft_s=0.5, tpot_s=0.2))).refusal is Refusal.NO_MEMORY


def test_warm_ups_wait_for_a_node_and_for_memory():
    box = Box(models=THREE, profiles=())
    box(reports.NodeDown(node_id="cpu0", suspect=None, because="killed"))
    for name in THREE:
        assert box(events.WarmUpAsked(name=name)) == []
    loads = box(reports.NodeUp(node_id="cpu0", memory_bytes=800 * MIB))
    assert [each.model for each in loads] == ["wren", "owl"]
    first = loads[0].instance_id
    box.report(first, ModelState.WARM)
    box.report(first, ModelState.RESIDENT)
    measured = box(reports.ProfileMeasured(node_id="cpu0", instance_id=first, profile=profile()))
    assert kinds(measured) == ["LoadInstance"], "measured, they need less"
    assert measured[0].model == "rook"


def test_whoever_asks_for_a_load_need_not_wait_because_the_last_one_failed():
    box = Box()
    box(events.WarmUpAsked(name="wren"))
    box(reports.LoadFailed(node_id="cpu0", instance_id="wren@cpu0#0", error="its file is damaged"))
    assert only(RefuseRequest, box.ask()).refusal is Refusal.MODEL_BROKEN
    assert kinds(box(events.WarmUpAsked(name="wren"))) == ["LoadInstance"]


def test_an_unload_waits_until_nobody_is_served():
    box = Box()
    instance_id = box.load()
    box.ask()
    assert box(events.UnloadAsked(name="wren")) == []
    assert kinds(box.finish(instance_id, "req-1")) == ["UnloadInstance"]


def test_a_changed_checkpoint_replaces_the_old_one():
    box = Box(profiles=(profile(), profile(shape(layers=14))))
    old = box.load()
    box.ask()
    box(events.ModelAdded(spec=model("wren", shape(layers=14))))
    new = only(LoadInstance, box.ask())
    assert new.instance_id != old
    assert kinds(box.finish(old, "req-1")) == ["UnloadInstance"]


def test_a_removed_model_runs_to_its_end_and_is_forgotten():
    box = Box()
    instance_id = box.load()
    box.ask()
    box(events.ModelRemoved(name="wren"))
    assert kinds(box.finish(instance_id, "req-1")) == ["UnloadInstance"]
    box.report(instance_id, ModelState.COLD)
    box.tick()
    assert "wren" not in box.mind.fleet.models


def test_a_growing_kv_pool_counts_when_it_is_reported():
    box = Box(node(memory_mib=700))
    instance_id = box.load()
    box.report(instance_id, ModelState.RESIDENT, kv_mib=300)
    ledger = box.mind.fleet.nodes["cpu0"].held
    assert ledger.free_bytes == (700 - 320 - 300) * MIB
    assert kinds(box.ask("owl")) == ["RestInstance"]


def test_a_pool_is_promised_its_watermark_and_settles_for_its_demand_where_memory_is_tight():
    box = Box(node(memory_mib=2 * 320 + 12), profiles=(profile(),))
    first = box.load("wren")
    box.load("owl")
    promised, patient = box.mind.fleet.nodes["cpu0"].promised, Slo(ttft_s=60.0, tpot_s=1.0)
    box.ask("wren", prompt=8 * 1024 - 50, slo=patient)
    assert promised.of(first, Purpose.KV) == 10 * MIB, "8 MiB and a quarter"
    assert only(SubmitRequest, box.ask("owl", prompt=4 * 1024 - 50, slo=patient))
    assert promised.of(first, Purpose.KV) == 8 * MIB
    assert promised.free_bytes == 0


def test_every_state_can_be_left_and_reached():
    assert set(MOVES) == set(ModelState) - {ModelState.QUARANTINED}
    assert {to for moves in MOVES.values() for to in moves} == set(MOVES)
