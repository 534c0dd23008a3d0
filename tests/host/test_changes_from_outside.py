"""What does the host do when a node's memory changes, and when an operator wants a model measured again?"""

import msgspec
import pytest
from boxes import MIB, Box, kinds, node, only, profile

from llmhostd.compute.estimator import CorrectionPolicy
from llmhostd.domain import events, reports
from llmhostd.domain.commands import LoadInstance, MeasureProfile, RestInstance
from llmhostd.domain.model import ModelState
from llmhostd.host import invariants
from llmhostd.host.policies import HostPolicies


def shrunk(memory_mib: int) -> reports.NodeMemoryChanged:
    return reports.NodeMemoryChanged(node_id="cpu0", memory_bytes=memory_mib * MIB, because="others use more")


def test_the_idle_give_way_when_a_node_has_less():
    box = Box(node(memory_mib=2000), models=("wren", "owl"))
    first, second = box.load("wren"), box.load("owl")
    box.ask("wren", after=1.0)
    rested = only(RestInstance, box(shrunk(500)))
    assert rested.instance_id == second, "the other one runs for somebody"
    assert "others use more" in rested.because
    box.report(second, ModelState.WARM)
    assert box.mind.fleet.nodes["cpu0"].promised.free_bytes >= 0
    assert first in box.mind.fleet.instances
    invariants.check(box.mind)


def test_more_memory_lets_somebody_in():
    box = Box(node(memory_mib=500), models=("wren", "owl"))
    box.load("wren")
    box.ask("wren")
    assert box.ask("owl") == []
    assert kinds(box(shrunk(2000))) == ["LoadInstance", "SubmitRequest"]


def test_a_loaded_model_is_measured_at_once_and_another_once_it_is_loaded():
    box = Box(models=("wren", "owl"))
    first = box.load("wren")
    order = only(MeasureProfile, box(events.MeasureAsked(name="wren")))
    assert (order.instance_id, order.asked) == (first, True)
    assert box.tick(after=1.0) == [], "once"
    second = only(LoadInstance, box(events.MeasureAsked(name="owl"))).instance_id
    assert only(MeasureProfile, box.report(second, ModelState.WARM)).instance_id == second


def test_nobody_measures_what_is_not_there():
    box = Box()
    assert box(events.MeasureAsked(name="nobody")) == []


def test_the_host_believes_corrections_as_far_as_its_nodes_do():
    """What a node learned is bounded by its policy; the host validates with the same bounds."""
    strict = HostPolicies(correction=CorrectionPolicy(least=0.9, most=1.1))
    slow = msgspec.structs.replace(profile(), decode_correction=2.5)
    times = [
        box.mind.fleet.instances[box.load()].load.estimator.iteration_s(prefill=(), decode_batch=1, decode_context=64)
        for box in (Box(profiles=(slow,)), Box(profiles=(slow,), policies=strict))
    ]
    assert times[0] / times[1] == pytest.approx(2.5 / 1.1)


def test_what_was_asked_to_be_measured_is_measured_though_its_worker_dies():
    box = Box(models=("wren", "owl"))
    first = box.load("wren")
    box(events.MeasureAsked(name="wren"))
    died = reports.NodeDown(node_id="cpu0", suspect=None, because="killed")
    came = reports.NodeUp(node_id="cpu0", memory_bytes=4096 << 20)

    def progressed(instance_id, done):
        report = reports.ProfileProgressed(node_id="cpu0", instance_id=instance_id, done=done, total=96)
        return box(report, after=1.0)

    progressed(first, 12)
    box(died, after=1.0)
    again = only(LoadInstance, box(came, after=1.0)).instance_id
    assert only(MeasureProfile, box.report(again, ModelState.WARM)).asked
    progressed(again, 96)
    box(died, after=1.0)
    assert box(came, after=1.0) == [], "it was measured"


def test_what_was_asked_to_be_measured_is_forgotten_with_its_model():
    box = Box()
    box.load("wren")
    box(events.MeasureAsked(name="wren"))
    box(events.ModelRemoved(name="wren"))
    box(reports.NodeDown(node_id="cpu0", suspect=None, because="killed"))
    assert box(reports.NodeUp(node_id="cpu0", memory_bytes=4096 << 20), after=1.0) == []


def test_what_was_to_be_loaded_is_loaded_though_its_worker_dies_until_it_is_to_blame_too_often():
    box = Box()
    came = reports.NodeUp(node_id="cpu0", memory_bytes=4096 << 20)
    loading = only(LoadInstance, box(events.WarmUpAsked(name="wren"))).instance_id
    box(reports.NodeDown(node_id="cpu0", suspect=None, because="killed"), after=1.0)
    loading = only(LoadInstance, box(came, after=1.0)).instance_id
    for _ in range(2):
        box(reports.NodeDown(node_id="cpu0", suspect=loading, because="crashed"), after=1.0)
        loading = only(LoadInstance, box(came, after=1.0)).instance_id
    box(reports.NodeDown(node_id="cpu0", suspect=loading, because="crashed"), after=1.0)
    assert box(came, after=1.0) == [], "it is quarantined"
    box(events.ModelReleased(name="wren"))
    assert box.tick(after=1.0) == [], "nobody asked for it since"
