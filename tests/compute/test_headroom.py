"""Least headroom first, and the slack that earliest deadline first leaves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nodes import LinearEstimator, instance, node, request

from llmhostd.compute.demand import demand_of
from llmhostd.compute.headroom import Agenda, HeadroomPolicy
from llmhostd.compute.workload import NEVER_S

EXACT = HeadroomPolicy(reserve_s=0.0)


def test_headroom_is_equation_1():
    one = request("r", out=3, arrived=10.0, ttft=2.0, tpot=0.25)
    assert one.headroom_s(11.0) == pytest.approx(10 + 2 + 0.25 * 3 - 11)
    assert one.deadline_s == pytest.approx(11.0 + one.headroom_s(11.0))


def test_the_least_headroom_is_chosen_and_loading_instances_are_not():
    a = instance("a", request("r1", out=4, arrived=0.0))
    b = instance("b", request("r2", arrived=0.5))
    c = instance("c", request("r3", arrived=-5.0), ready=3.0)
    agenda = Agenda(node(a, b, c))
    assert agenda.most_urgent(1.0).instance is b
    assert agenda.most_urgent(1.0, but=b.id).instance is a
    assert agenda.most_urgent(3.0).instance is c


def test_best_effort_never_counts_as_urgent():
    a = instance("a", request("r1", arrived=-50.0, best_effort=True))
    b = instance("b", request("r2", arrived=0.0))
    agenda = Agenda(node(a, b))
    assert agenda.most_urgent(1.0).instance is b
    assert agenda.most_urgent_best_effort(1.0).instance is a
    assert demand_of(a).deadline_s == NEVER_S
    assert not demand_of(a).dues


def test_touch_is_enough_to_follow_changes():
    a, b = instance("a", request("r1", out=1)), instance("b", request("r2", out=1, arrived=0.1))
    box = node(a, b)
    agenda = Agenda(box)
    assert agenda.most_urgent(1.0).instance is a
    a.requests[next(iter(a.requests))].tokens_out += 1
    agenda.touch(a.id)
    assert agenda.most_urgent(1.0).instance is b
    del box.instances[b.id]
    agenda.touch(b.id)
    assert agenda.most_urgent(1.0).instance is a


def test_slack_leaves_room_for_everybody_due_before():
    # Two prefills of 100 tokens cost 30 ms each; due at 2.0 and 2.1.
    a, b = instance("a", request("r1", arrived=0.0)), instance("b", request("r2", arrived=0.1))
    agenda = Agenda(node(a, b))
    assert agenda.slack_s(1.9, EXACT) == pytest.approx(min(0.1 - 0.03, 0.2 - 0.06))
    assert agenda.slack_s(1.9, EXACT, but=a.id) == pytest.approx(0.2 - 0.03)
    assert agenda.slack_s(1.9, HeadroomPolicy(reserve_s=0.02)) == pytest.approx(0.1 - 0.03 - 0.02)


def test_decodes_come_round_again_before_a_later_deadline():
    decode = request("r1", prompt=100, out=1, arrived=-2.1)  # due at 0.1, then every 0.2 s
    cost_s = LinearEstimator().iteration_s(prefill=(), decode_batch=1, decode_context=101)
    prefill = request("r2", arrived=-1.0)  # due at 1.0
    agenda = Agenda(node(instance("a", decode), instance("b", prefill)))
    rounds = 1 + (1.0 - 0.1) / 0.2
    assert agenda.slack_s(0.0, EXACT) == pytest.approx(min(0.1 - cost_s, 1.0 - 0.03 - rounds * cost_s))


def test_who_is_late_anyway_limits_nobody():
    late, fine = request("r1", arrived=-9.0), request("r2", arrived=0.0)
    agenda = Agenda(node(instance("a", late), instance("b", fine)))
    assert agenda.slack_s(1.0, EXACT) == pytest.approx(1.0 - 0.06)
    assert agenda.slack_s(1.0, EXACT, strict=True) == pytest.approx(-8.0 + 2.0 - 0.03)  # due once more


def test_the_first_run_of_a_warm_instance_is_counted():
    warm = instance("a", request("r1"), first_run=0.3)
    assert Agenda(node(warm)).slack_s(1.0, EXACT) == pytest.approx(1.0 - 0.03 - 0.3)


requests = st.builds(
    lambda name, prompt, out, arrived, tpot: (name, prompt, out, arrived / 10, tpot / 10),
    st.integers(0, 3), st.integers(1, 400), st.integers(0, 3), st.integers(0, 40), st.integers(1, 5),
)  # fmt: skip


@given(st.lists(requests, min_size=1, max_size=7), st.integers(0, 30))
def test_running_something_else_for_the_slack_makes_nobody_late(drawn, tenths):
    """Replay by hand: after the slack, serve by earliest deadline, each decode batch again every TPOT."""
    now = 4.0 + tenths / 10
    held = [[] for _ in range(4)]
    for k, (where, prompt, out, arrived, tpot) in enumerate(drawn):
        held[where].append(request(f"r{k}", prompt, out=out, arrived=arrived, tpot=tpot))
    box = node(*(instance(f"i{k}", *some) for k, some in enumerate(held)))
    agenda = Agenda(box)
    slack_s = agenda.slack_s(now, EXACT)
    if slack_s < 0:
        return
    dues = sorted((d.deadline_s, d.cost_s) for one in box.instances.values() for d in agenda.demand(one.id).dues)
    clock = now + min(slack_s, 1e6)
    for deadline_s, cost_s in dues:
        clock += cost_s
        assert clock <= deadline_s + 1e-9 or deadline_s - now < cost_s
