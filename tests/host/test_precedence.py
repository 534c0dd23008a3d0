"""While memory is short, whose new instance comes first?"""

import pytest
from boxes import Box, node

from llmhostd.domain.actions import RefuseRequest
from llmhostd.domain.commands import LoadInstance
from llmhostd.domain.events import RequestCancelled
from llmhostd.domain.model import ModelState
from llmhostd.host.hope import HopePolicy
from llmhostd.host.policies import HostPolicies
from llmhostd.host.precedence import PrecedencePolicy


def box_full_of_kite(*nodes, **policy):
    """One resident instance with a request leaves no room for a second one."""
    policies = HostPolicies(hope=HopePolicy(wait_for_memory=False), precedence=PrecedencePolicy(**policy))
    box = Box(*(nodes or (node(memory_mib=500),)), policies=policies, models=("kite", "wren", "owl"))
    load = next(one for one in box.ask("kite", id="kite-1") if isinstance(one, LoadInstance))
    box.report(load.instance_id, ModelState.WARM)
    box.report(load.instance_id, ModelState.RESIDENT, kv_mib=1)
    return box, load.instance_id


def refusal(actions):
    return next((one for one in actions if isinstance(one, RefuseRequest)), None)


def test_whom_more_people_ask_for_is_loaded_first():
    box, kite = box_full_of_kite()
    for _ in range(3):
        assert refusal(box.ask("wren", after=0.2))
    assert refusal(box.ask("owl", after=0.2))
    box.finish(kite, "kite-1")
    said = refusal(box.ask("owl", after=0.1))
    assert said.because == "memory is short, and goes to wren first, which more people ask for"
    assert said.retry_after_s > 0
    actions = box.ask("wren", after=0.1)
    assert refusal(actions) is None
    assert "wren" in [box.mind.fleet.instances[key].model for key in box.mind.fleet.instances]


def test_who_asks_again_counts_once():
    box, kite = box_full_of_kite()
    arrived_s = box.now
    for _ in range(9):
        assert refusal(box.ask("owl", after=0.1, id="owl-1", arrived_s=arrived_s))
    for _ in range(2):
        assert refusal(box.ask("wren", after=0.1))
    box.finish(kite, "kite-1")
    assert "wren first" in refusal(box.ask("owl", id="owl-1", arrived_s=arrived_s)).because


@pytest.mark.parametrize(("policy", "later_s"), [({"busier": 0.0}, 0.1), ({"claim_s": 3.0}, 3.5)])
def test_nobody_waits_for_who_does_not_come(policy, later_s):
    box, kite = box_full_of_kite(**policy)
    for _ in range(3):
        assert refusal(box.ask("wren", after=0.2))
    box.finish(kite, "kite-1")
    assert refusal(box.ask("owl", after=later_s)) is None


def test_who_found_a_place_claims_nothing():
    box, kite = box_full_of_kite()
    for _ in range(3):
        assert refusal(box.ask("wren", after=0.2))
    box.finish(kite, "kite-1")
    assert refusal(box.ask("wren", after=0.1)) is None
    box.tick(0.1)
    for request in list(box.mind.fleet.requests):
        box(RequestCancelled(request_id=request))
    assert refusal(box.ask("owl", after=0.1)) is None
