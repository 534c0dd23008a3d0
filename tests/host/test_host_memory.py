"""Are weights that save most kept in memory that is free, and given up the moment that anybody needs it?"""

from boxes import MIB, Box, kinds, model, node, only, shape

from llmhostd.domain import events, reports
from llmhostd.domain.commands import KeepWeights, LoadInstance, ReleaseWeights
from llmhostd.domain.model import ModelState
from llmhostd.domain.start import TierBytes
from llmhostd.host.policies import HostPolicies
from llmhostd.memory.host_tier import HostTierPolicy

BYTES = 300 * MIB
WHOLE = HostPolicies(host_memory=HostTierPolicy(most_share=1.0, look_every_s=5.0))


def asked_for(box, name, times):
    """Ask for it, and let everything of it go again: it was asked for, and nothing of it is loaded."""
    for _ in range(times):
        actions = box.ask(name)
        for each in list(box.mind.fleet.requests):
            box(events.RequestCancelled(request_id=each))
        loads = [each for each in actions if isinstance(each, LoadInstance)]
        if loads:
            box.report(loads[0].instance_id, ModelState.WARM)
    box(events.UnloadAsked(name=name))
    for each in [one.id for one in box.mind.fleet.instances_of(name)]:
        box.report(each, ModelState.COLD)
    box(events.WeightsLocated(model=name, lies=TierBytes(disk_bytes=BYTES)))


def kept(box, name, size=BYTES, because=""):
    return box(reports.WeightsKept(node_id="cpu0", model=name, kept_bytes=size, because=because))


def lent(box):
    return sorted(box.mind.fleet.nodes["cpu0"].promised.lent)


def fill(box):
    """Let time pass, and every order be carried out; returns whose weights were brought in, in order."""
    names, actions = [], box.tick(after=6.0)
    while orders := [each for each in actions if isinstance(each, KeepWeights)]:
        names.append(only(KeepWeights, orders).model)
        actions = kept(box, names[-1])
    return names


def make(memory_mib, **asked):
    box = Box(node("cpu0", memory_mib), policies=WHOLE, models=tuple(asked))
    for name, times in asked.items():
        asked_for(box, name, times)
    return box


def test_who_is_asked_for_most_is_kept_one_after_another():
    box = make(700, wren=1, owl=5, rook=3)
    assert only(KeepWeights, box.tick(after=6.0)).model == "owl"
    assert "KeepWeights" not in kinds(box.tick(after=6.0)), "one at a time"
    assert only(KeepWeights, kept(box, "owl")).model == "rook"
    assert "KeepWeights" not in kinds(kept(box, "rook")), "a third does not fit"
    assert fill(box) == []
    assert lent(box) == ["owl", "rook"]
    assert box.mind.snapshot(box.now).nodes[0].kept_bytes == 2 * BYTES


def test_an_instance_that_needs_the_memory_has_it_in_the_same_step():
    box = make(700, wren=1, owl=5, rook=3)
    assert fill(box) == ["owl", "rook"]
    actions = box.ask("wren")
    gone = only(ReleaseWeights, actions)
    assert gone.model == "rook"
    assert kinds(actions).index("ReleaseWeights") < kinds(actions).index("LoadInstance")
    assert lent(box) == ["owl"]


def test_a_node_that_shrinks_gives_up_what_is_kept_first():
    box = make(700, owl=5, rook=3)
    assert fill(box) == ["owl", "rook"]
    actions = box(reports.NodeMemoryChanged(node_id="cpu0", memory_bytes=200 * MIB, because="others use more"))
    assert sorted(each.model for each in actions if isinstance(each, ReleaseWeights)) == ["owl", "rook"]
    assert not lent(box)


def test_what_could_not_be_kept_is_not_tried_again_at_once():
    box = make(700, owl=5, rook=3)
    assert only(KeepWeights, box.tick(after=6.0)).model == "owl"
    assert only(KeepWeights, kept(box, "owl", 0, "the disk says that it cannot")).model == "rook"
    kept(box, "rook")
    assert fill(box) == []
    assert only(KeepWeights, box.tick(after=900.0)).model == "owl"


def test_nothing_is_kept_of_what_nobody_asked_for_nor_of_what_is_resident_nor_while_something_loads():
    box = Box(policies=WHOLE, models=("wren", "owl"))
    box(events.WeightsLocated(model="owl", lies=TierBytes(disk_bytes=BYTES)))
    assert "KeepWeights" not in kinds(box.tick(after=6.0)), "nobody asked"
    asked_for(box, "owl", 2)
    box.ask("wren")
    assert "KeepWeights" not in kinds(box.tick(after=6.0)), "wren loads"
    wren = next(iter(box.mind.fleet.instances))
    box.report(wren, ModelState.WARM)
    box.report(wren, ModelState.RESIDENT)
    box(events.WeightsLocated(model="wren", lies=TierBytes(memory_bytes=BYTES)))
    assert fill(box) == ["owl"], "wren's weights are packed"


def test_a_worker_that_dies_keeps_nothing():
    box = make(700, owl=5)
    assert fill(box) == ["owl"]
    box(reports.NodeDown(node_id="cpu0", suspect=None, because="killed by signal 9"))
    assert not lent(box)
    box(reports.NodeUp(node_id="cpu0", memory_bytes=700 * MIB))
    assert only(KeepWeights, box.tick(after=6.0)).model == "owl"


def test_a_large_model_does_not_keep_two_small_ones_out_that_save_more():
    box = Box(
        node("cpu0", 700), policies=WHOLE, models=(model("hawk", shape(layers=24, weight_mib=600)), "wren", "owl")
    )
    asked_for(box, "wren", 3)
    asked_for(box, "owl", 3)
    asked_for(box, "hawk", 2)
    box(events.WeightsLocated(model="hawk", lies=TierBytes(disk_bytes=2 * BYTES)))
    assert sorted(fill(box)) == ["owl", "wren"]
