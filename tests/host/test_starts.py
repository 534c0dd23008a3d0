"""Are starts foretold, followed and learned from?"""

import pytest
from boxes import Box, kinds, model, node, only, profile, row, shape

from llmhostd.domain import events, reports
from llmhostd.domain.actions import Refusal, RefuseRequest, StartEnded
from llmhostd.domain.commands import LoadInstance, UnloadInstance
from llmhostd.domain.model import ModelState
from llmhostd.domain.reports import LoadStages
from llmhostd.domain.request import Tier
from llmhostd.domain.start import TierBytes

BYTES = 300 << 20
OWN_S = 0.04
"""What the profile says of an iteration of 100 tokens."""


def loaded(box, instance_id, took_s, *, disk=BYTES, read_s=0.1, after=None, compile_s=0.0, remote=0):
    """A worker says that a load ended, and how it went."""
    stages = LoadStages(
        read_s=read_s, build_s=0.1, compile_s=compile_s, read_bytes=BYTES, disk_bytes=disk, remote_bytes=remote
    )
    node_id = instance_id.split("@")[1].split("#")[0]
    report = reports.InstanceReported(
        node_id=node_id, instance_id=instance_id, state=ModelState.WARM, held_bytes=20 << 20, kv_bytes=0,
        kv_used_bytes=0, took_s=took_s, stages=stages,
    )  # fmt: skip
    return box(report, took_s if after is None else after)


def packed(box, instance_id, first_run_s, *request_ids):
    """Its first iteration ran, and it says so."""
    box.now += first_run_s
    node_id = instance_id.split("@")[1].split("#")[0]
    predicted_s = OWN_S + box.mind.fleet.instances[instance_id].load.first_run_s
    rows = tuple(row(each, prefilled=100, tokens=1) for each in request_ids)
    box(
        reports.IterationReported(
            node_id=node_id, instance_id=instance_id, started_s=box.now - first_run_s, duration_s=first_run_s,
            predicted_s=predicted_s, rows=rows, because="test",
        )
    )  # fmt: skip
    return box(
        reports.InstanceReported(
            node_id=node_id, instance_id=instance_id, state=ModelState.RESIDENT, held_bytes=320 << 20, kv_bytes=0,
            kv_used_bytes=0, first_run_s=first_run_s,
        )
    )  # fmt: skip


def start(box, name, took_s=0.8, pack_s=0.3, **more):
    """Ask for a model that is cold, let it start; returns what was told of the start."""
    instance_id = only(LoadInstance, box.ask(name)).instance_id
    loaded(box, instance_id, took_s, **more)
    request_id = next(iter(box.mind.fleet.instances[instance_id].load.requests))
    return only(StartEnded, packed(box, instance_id, pack_s, request_id)), instance_id


def cold_again(box, instance_id):
    box(events.UnloadAsked(name=instance_id.split("@")[0]))
    for request_id in list(box.mind.fleet.requests):
        box(events.RequestCancelled(request_id=request_id))
    box.report(instance_id, ModelState.COLD)


def fetched(box, instance_id, here_bytes, *, near=False, pace=10e6):
    """A worker says how far weights are that come over a network."""
    return box(
        reports.WeightsFetched(
            node_id=instance_id.split("@")[1].split("#")[0], instance_id=instance_id, here_bytes=here_bytes,
            total_bytes=BYTES, bytes_per_s=pace, near=near,
        )
    )  # fmt: skip


def test_what_a_worker_compiled_once_is_not_foretold_again_until_another_worker_begins():
    box = Box()
    told, instance_id = start(box, "wren", took_s=0.8, compile_s=0.3)
    assert told.seen.fresh
    cold_again(box, instance_id)
    again, instance_id = start(box, "wren", took_s=0.5)
    assert not again.seen.fresh
    assert abs(again.seen.estimated_s - (told.seen.start_s - 0.3)) < 1e-6
    cold_again(box, instance_id)
    box(reports.NodeDown(node_id="cpu0", suspect=None, because="killed"))
    box(reports.NodeUp(node_id="cpu0", memory_bytes=8 << 30))
    box(events.WeightsLocated(model="wren", lies=TierBytes(disk_bytes=BYTES)))
    after, _ = start(box, "wren", took_s=0.8, compile_s=0.3)
    assert after.seen.fresh
    assert abs(after.seen.estimated_s - told.seen.start_s) < 1e-6


def test_what_is_computed_while_weights_are_read_is_not_waited_for_again():
    box = Box()
    told, instance_id = start(box, "wren", pack_s=0.01)
    assert round(told.seen.begun_s, 9) == 0.03, "0.04 s were its own work"
    cold_again(box, instance_id)
    box(events.WeightsLocated(model="wren", lies=TierBytes(disk_bytes=BYTES)))
    again, _ = start(box, "wren", pack_s=0.01)
    assert abs(again.seen.estimated_s - told.seen.start_s) < 1e-6


def test_weights_that_come_over_a_network_hold_up_nobody_else_and_teach_its_pace():
    box = Box(models=(model("wren"), model("lark")))
    box(events.WeightsLocated(model="wren", lies=TierBytes(remote_bytes=BYTES)))
    far = only(LoadInstance, box.ask("wren")).instance_id
    assert box.mind.fleet.instances[far].start.plan.read_s == BYTES / 100e6, "as the settings say"
    fetched(box, far, 0)
    snapshot = box.mind.snapshot(box.now)
    assert (snapshot.instances[0].fetched_bytes, snapshot.instances[0].fetch_bytes) == (0, BYTES)
    wren = next(one for one in snapshot.models if one.name == "wren")
    assert wren.remote_bytes == BYTES
    ready_s = box.mind.fleet.instances[far].load.ready_at_s - box.now
    assert abs(ready_s - BYTES / 10e6 - 0.5) < 1e-6, "at the pace that is seen, and then the rest of its load"
    near = only(LoadInstance, box.ask("lark")).instance_id
    assert box.mind.fleet.instances[near].start.plan.queue_s == 0.0
    loaded(box, near, 0.8)
    fetched(box, far, BYTES - (10 << 20), near=True)
    told_s = 31.0
    loaded(box, far, told_s, disk=0, remote=BYTES, read_s=30.5)
    request_id = next(iter(box.mind.fleet.instances[far].load.requests))
    told = only(StartEnded, packed(box, far, 0.3, request_id))
    assert told.seen.came_from == TierBytes(remote_bytes=BYTES)
    assert abs(box.mind.snapshot(box.now).nodes[0].remote_bytes_per_s - BYTES / 30.5) < 1.0


def test_a_fetch_that_nobody_waits_for_ends_when_it_is_to_be_unloaded():
    box = Box()
    box(events.WeightsLocated(model="wren", lies=TierBytes(remote_bytes=BYTES)))
    box(events.WarmUpAsked(name="wren"))
    instance_id = next(iter(box.mind.fleet.instances))
    fetched(box, instance_id, 1000)
    assert only(UnloadInstance, box(events.UnloadAsked(name="wren"))).instance_id == instance_id
    box.report(instance_id, ModelState.COLD)
    assert not box.mind.fleet.instances


def test_a_start_is_foretold_then_told_and_the_next_one_is_foretold_by_it():
    box = Box()
    told, instance_id = start(box, "wren")
    # The profile says 0.5 s, 0.1 s, and 0.04 s for an iteration of 100 tokens.
    assert round(told.seen.estimated_s, 9) == 0.64
    assert (told.seen.load_s, told.seen.came_from) == (0.8, TierBytes(disk_bytes=BYTES))
    assert round(told.seen.start_s, 9) == 1.1, "from the decision to the end of the first iteration"
    assert round(told.seen.pack_s, 9) == 0.26, "the rest was its own work"
    cold_again(box, instance_id)
    box(events.WeightsLocated(model="wren", lies=TierBytes(disk_bytes=BYTES)))
    again, _ = start(box, "wren")
    assert abs(again.seen.estimated_s - told.seen.start_s) < 1e-6
    assert again.seen.error < 1e-6
    snapshot = box.mind.snapshot(box.now)
    assert snapshot.instances[0].start_s == again.seen.start_s
    assert snapshot.instances[0].estimated_start_s == again.seen.estimated_s
    assert snapshot.nodes[0].start_error is not None


def test_what_an_earlier_run_saw_foretells_the_first_start_of_this_one():
    first = Box()
    told, _ = start(first, "wren", took_s=1.4)
    second = Box()
    second(events.StartsRemembered(starts=(told.seen,)))
    again, _ = start(second, "wren", took_s=1.4)
    assert abs(again.seen.estimated_s - told.seen.start_s) < 1e-6


def test_weights_in_memory_are_foretold_to_start_sooner():
    box = Box()
    for _ in range(2):
        told, instance_id = start(box, "wren", took_s=1.0, read_s=0.6)
        cold_again(box, instance_id)
        box(events.WeightsLocated(model="wren", lies=TierBytes(disk_bytes=BYTES)))
    from_disk = box.mind.snapshot(box.now).models[0].estimated_start_s
    box(events.WeightsLocated(model="wren", lies=TierBytes(memory_bytes=BYTES)))
    from_memory = box.mind.snapshot(box.now).models[0].estimated_start_s
    assert abs(from_disk - (told.seen.start_s - OWN_S)) < 1e-6, "where nobody asks there is no iteration of its own"
    assert from_memory < from_disk - 0.3


def test_loads_wait_for_each_other_and_an_overrun_moves_those_behind_it():
    box = Box(models=("wren", "owl", "rook"))
    ids = [only(LoadInstance, box.ask(name)).instance_id for name in ("wren", "owl", "rook")]
    ready = [box.mind.fleet.instances[each].load.ready_at_s for each in ids]
    assert [round(each, 6) for each in ready] == [0.5, 1.0, 1.5]
    # The first takes twice as long: when it is there, the others have it all before them still.
    loaded(box, ids[0], 1.0)
    ready = [box.mind.fleet.instances[each].load.ready_at_s for each in ids[1:]]
    assert [round(each, 6) for each in ready] == [1.5, 2.0]


def test_a_load_that_nobody_waits_for_is_told_without_packing():
    box = Box()
    instance_id = only(LoadInstance, box(events.WarmUpAsked(name="wren"))).instance_id
    told = only(StartEnded, loaded(box, instance_id, 0.8))
    assert told.seen.pack_s is None
    assert told.seen.estimated_s == 0.5
    assert told.seen.start_s == 0.8


def test_workers_that_do_not_say_how_a_load_went_are_learned_nothing_from():
    box = Box()
    instance_id = only(LoadInstance, box.ask("wren")).instance_id
    assert "StartEnded" not in kinds(box.report(instance_id, ModelState.WARM, after=3.0))
    assert box.mind.snapshot(box.now).nodes[0].start_error is None


@pytest.mark.parametrize(("load_s", "where"), [(0.9, "cpu0"), (1.1, "cpu1")])
def test_a_new_instance_goes_where_it_starts_soon(load_s, where):
    """The smaller node fits best; but a load is under way there (ServerlessLLM §6.3)."""
    slow = profile(load_s=load_s)
    box = Box(node("cpu0", 4096), node("cpu1", 8192), models=("wren", "owl"), profiles=(slow,))
    assert only(LoadInstance, box.ask("wren")).node_id == "cpu0"
    assert only(LoadInstance, box.ask("owl")).node_id == where


def test_a_model_of_another_shape_is_foretold_by_those_of_its_format():
    large = shape(layers=24, weight_mib=600)
    box = Box()
    start(box, "wren", took_s=0.1 + 12 * 0.05, read_s=0.1, pack_s=0.3)
    box(events.ModelAdded(spec=model("hawk", large)))
    foretold = next(one for one in box.mind.snapshot(box.now).models if one.name == "hawk").estimated_start_s
    read_s, build_s = 2 * 0.1, 24 * 0.05
    assert foretold > read_s + build_s


def test_who_would_wait_too_long_for_a_load_is_told_when_to_come_back_and_it_is_loaded_meanwhile():
    box = Box(profiles=(profile(load_s=80.0),))
    actions = box.ask("wren")
    refused = only(RefuseRequest, actions)
    assert refused.refusal is Refusal.OVERLOADED
    assert refused.retry_after_s == 60.0
    assert refused.because == "wren takes 80 s to start on cpu0; it is loaded meanwhile"
    assert only(LoadInstance, actions).model == "wren"
    again = box.ask("wren", after=30.0)
    assert kinds(again) == ["SubmitRequest"], "50 s are left: that can be waited for"
    assert len(box.mind.fleet.instances) == 1
    assert box.ask("wren", after=1.0, tier=Tier.BEST_EFFORT) != []
