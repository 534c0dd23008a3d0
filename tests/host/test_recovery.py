"""How does nothing get lost?"""

from boxes import MIB, Box, kinds, node, only, row

from llmhostd.domain import events, reports
from llmhostd.domain.actions import QuarantineModel, Refusal, RefuseRequest
from llmhostd.domain.commands import LoadInstance, RestInstance, SubmitRequest
from llmhostd.domain.model import ModelState
from llmhostd.domain.request import Tier
from llmhostd.host.hope import HopePolicy
from llmhostd.host.policies import HostPolicies


def die(box, suspect=None, node_id="cpu0", after=0.1):
    return box(reports.NodeDown(node_id=node_id, suspect=suspect, because="killed by signal 11"), after)


def rise(box, node_id="cpu0", memory_mib=4096, after=0.5):
    return box(reports.NodeUp(node_id=node_id, memory_bytes=memory_mib * MIB), after)


def test_after_a_death_every_request_goes_on_from_its_tokens_people_first():
    box = Box()
    instance_id = box.load()
    box.ask(tier=Tier.BEST_EFFORT)
    box.ask()
    box.ask(after=0.1)
    box.iterate(instance_id, row("req-2", prefilled=100, tokens=1), row("req-3", prefilled=50))
    box.iterate(instance_id, row("req-2", tokens=1))
    assert die(box) == []
    assert box.mind.snapshot(box.now).nodes[0].restarts == 1
    decided = rise(box)
    assert kinds(decided) == ["LoadInstance"] + ["SubmitRequest"] * 3
    assert [(each.request.id, each.request.tokens_out) for each in decided[1:]] == [
        ("req-2", 2), ("req-3", 0), ("req-1", 0),
    ]  # fmt: skip
    assert [each.moves for each in box.mind.snapshot(box.now).requests] == [1, 1, 1]


def test_another_node_takes_over_at_once():
    box = Box(node("cpu0"), node("cpu1"))
    first = only(SubmitRequest, box.ask())
    decided = die(box, node_id=first.node_id)
    assert kinds(decided) == ["LoadInstance", "SubmitRequest"]
    assert decided[1].node_id == "cpu1"


def test_who_was_admitted_is_never_refused_for_lateness():
    box = Box()
    instance_id = box.load()
    box.ask(prompt=6000)
    box.iterate(instance_id, row("req-1", prefilled=5900))
    die(box, after=1.5)
    again = only(SubmitRequest, rise(box, after=3.0))
    assert "would come" in again.because, "it is late, and goes on all the same"


def test_a_model_whose_file_was_changed_under_it_is_set_aside_at_once():
    box = Box()
    instance_id = box.load("wren")
    box.ask("owl")
    because = "weights.llmhostd was cut short"
    decided = box(reports.NodeDown(node_id="cpu0", suspect=instance_id, because=because, file_changed=True))
    assert only(QuarantineModel, decided).because == because
    assert only(SubmitRequest, rise(box)).request.model == "owl"
    assert only(RefuseRequest, box.ask("wren")).refusal is Refusal.MODEL_BROKEN


def test_a_model_that_crashes_three_times_in_a_row_is_quarantined_and_the_others_go_on():
    box = Box()
    box.ask("wren")
    box.ask("owl")
    for crash in range(3):
        assert "wren@cpu0" in " ".join(box.mind.fleet.instances)
        suspect = next(key for key in box.mind.fleet.instances if key.startswith("wren"))
        decided = die(box, suspect)
        assert ("QuarantineModel" in kinds(decided)) == (crash == 2)
        if crash < 2:
            rise(box)
    assert only(QuarantineModel, decided).model == "wren"
    refusal = only(RefuseRequest, decided)
    assert (refusal.request_id, refusal.refusal) == ("req-1", Refusal.MODEL_BROKEN)
    assert only(SubmitRequest, rise(box)).request.id == "req-2"
    assert only(RefuseRequest, box.ask("wren")).refusal is Refusal.MODEL_BROKEN
    assert box.mind.snapshot(box.now).models[0].state is ModelState.QUARANTINED
    box(events.ModelReleased(name="wren"))
    assert "LoadInstance" in kinds(box.ask("wren"))


def test_a_token_in_between_ends_the_row_of_crashes():
    box = Box()
    box.ask()
    for _ in range(5):
        suspect = next(iter(box.mind.fleet.instances))
        box.iterate(suspect, row("req-1", prefilled=100, tokens=1))
        assert "QuarantineModel" not in kinds(die(box, suspect))
        rise(box)
    assert only(SubmitRequest, box.decided[-1:]).request.tokens_out == 5


def test_a_failed_load_is_told_and_not_tried_again_for_a_while():
    box = Box()
    instance_id = only(LoadInstance, box.ask()).instance_id
    box.ask(tier=Tier.BEST_EFFORT)
    error = "model.safetensors: tensor lm_head.weight is missing"
    decided = box(reports.LoadFailed(node_id="cpu0", instance_id=instance_id, error=error), after=0.3)
    assert [(each.request_id, each.refusal) for each in decided] == [
        ("req-1", Refusal.MODEL_BROKEN), ("req-2", Refusal.MODEL_BROKEN),
    ]  # fmt: skip
    assert error in decided[0].because
    refusal = only(RefuseRequest, box.ask(after=10.0))
    assert (refusal.because, refusal.retry_after_s) == (f"loading wren failed: {error}", 20.0)
    assert box.mind.snapshot(box.now).models[0].because == refusal.because
    assert "LoadInstance" in kinds(box.ask(after=21.0))


def test_a_failed_load_on_one_node_leaves_the_instance_on_another():
    box = Box(node("cpu0"), node("cpu1"))
    first = only(SubmitRequest, box.ask(prompt=6000))
    second = only(SubmitRequest, box.ask(prompt=6000))
    assert first.node_id != second.node_id
    failed = reports.LoadFailed(node_id=second.node_id, instance_id=second.instance_id, error="disk")
    moved = only(SubmitRequest, box(failed))
    assert (moved.request.id, moved.instance_id) == (second.request.id, first.instance_id)


def test_a_returned_request_is_placed_again():
    box = Box()
    instance_id = box.load()
    box.ask()
    box.iterate(instance_id, row("req-1", prefilled=100, tokens=1))
    returned = reports.RequestReturned(node_id="cpu0", request_id="req-1", because="its KV does not fit")
    assert box(returned) == [], "what the node lacked it lacks now"
    assert box.tick() == [], "and a moment later, too"
    box.now += 0.05
    again = only(SubmitRequest, box.tick())
    assert again.request.tokens_out == 1


def test_a_failed_request_is_not_tried_again():
    box = Box()
    box.load()
    box.ask()
    assert box(reports.RequestFailed(node_id="cpu0", request_id="req-1", error="NaN")) == []
    assert not box.mind.fleet.requests


def test_a_node_that_comes_back_smaller_cannot_hold_what_waits():
    box = Box()
    box.ask()
    die(box)
    refusal = only(RefuseRequest, rise(box, memory_mib=256))
    assert (refusal.refusal, refusal.retry_after_s) == (Refusal.NO_MEMORY, 2.0)
    assert "does not fit into the memory that is left of this box" in refusal.because
    assert box.ask()[0].refusal is Refusal.NO_MEMORY, "it may have it again"


def test_what_nobody_waits_for_waits_for_the_memory_that_a_node_once_had():
    box = Box(node(memory_mib=256))
    assert only(RefuseRequest, box.ask(tier=Tier.BEST_EFFORT)).refusal is Refusal.TOO_LARGE
    assert box.ask(tier=Tier.BEST_EFFORT, accepted_before=True) == [], "an earlier run had more"
    more = reports.NodeMemoryChanged(node_id="cpu0", memory_bytes=4096 * MIB, because="others end")
    assert only(SubmitRequest, box(more)).request.id == "req-2"
    die(box)
    rise(box, memory_mib=256)
    assert box.ask(tier=Tier.BEST_EFFORT) == []
    assert kinds(box(more)) == ["LoadInstance", "SubmitRequest", "SubmitRequest"]


def test_a_load_without_memory_ends_no_best_effort():
    box = Box()
    instance_id = only(LoadInstance, box.ask()).instance_id
    box.ask(tier=Tier.BEST_EFFORT)
    failed = reports.LoadFailed(node_id="cpu0", instance_id=instance_id, error="no memory", lacks_memory=True)
    assert [each.request_id for each in box(failed, after=0.3)] == ["req-1"]
    assert box.tick(29.0) == []
    assert only(SubmitRequest, box.tick(1.1)).request.id == "req-2"


def test_a_worker_that_is_new_holds_nothing_even_if_nobody_saw_it_die():
    box = Box()
    box.load()
    box.ask()
    assert kinds(rise(box)) == ["LoadInstance", "SubmitRequest"]


def test_an_instance_that_its_node_gave_up_is_replaced():
    box = Box()
    instance_id = box.load()
    box.ask()
    assert kinds(box.report(instance_id, ModelState.COLD)) == ["LoadInstance", "SubmitRequest"]


def test_who_lost_its_place_is_not_starved_by_those_who_come_after():
    box = Box(node("cpu0", 500), node("cpu1", 500), policies=HostPolicies(hope=HopePolicy(most_restart_s=0.0)))
    first = box.load("wren")
    box.ask("wren")
    stranded = only(SubmitRequest, box.ask("owl")).request.id
    die(box, node_id="cpu1")
    running = "req-1"
    while isinstance(answer := box.ask("wren", after=0.25)[0], SubmitRequest):
        assert box.now < 20.0, "owl's request starves"
        box.iterate(first, row(running, tokens=1))
        box.finish(first, running)
        running = answer.request.id
    assert answer.because == "the nodes that are up are kept for somebody who waits for longer"
    assert only(RestInstance, box.finish(first, running)).instance_id == first
    load, submit = box.report(first, ModelState.WARM)
    assert (load.model, submit.request.id) == ("owl", stranded)
    assert box.ask("wren") == [], "it waits for owl's to end"
