"""More adapters than slots: everybody has turns, the due first, and slots are not filled more often than need be."""

from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nodes import instance, node, request

from llmhostd.compute.adapter_turns import AdapterRoom, Wish, in_turn
from llmhostd.compute.headroom import Agenda
from llmhostd.compute.iteration_plan import SchedulingPolicy, next_plan

names = st.sampled_from("abcdef")
POLICY = SchedulingPolicy()


class Play:
    """One instance, stepped exactly as planned."""

    def __init__(self, room, *requests):
        self.now, self.fills, self.plans = 0.0, 0, []
        self.one = instance("i", *requests, room=room)
        self.late_s = 0.0

    def step(self):
        plan = next_plan(Agenda(node(self.one)), self.now, POLICY)
        if plan is None:
            return None
        adapters = plan.adapters
        assert len(adapters) <= self.one.room.slots
        fills = [one for one in adapters if one not in self.one.room.held]
        assert plan.filling_s == len(fills) * self.one.room.fill_s
        assert plan.best_effort_s <= plan.predicted_s, "nobody pays for more than all of it"
        self.fills += len(fills)
        self.one.room = self.one.room.after(adapters)
        self.now += plan.predicted_s
        rows = plan.rows
        assert rows
        for row in rows:
            each = self.one.requests[row.request_id]
            each.computed_tokens += row.tokens
            if row.sample:
                self.late_s = max(self.late_s, self.now - each.deadline_s)
                each.said(1, self.now)
                if each.tokens_out >= each.shape.max_tokens:
                    del self.one.requests[row.request_id]
        self.plans.append(plan)
        return plan


@given(st.integers(1, 4), st.lists(st.lists(names, unique=True, max_size=4)))
def test_slots_hold_what_was_used_last(slots, iterations):
    room, twin = AdapterRoom(slots, 0.01), OrderedDict()
    for adapters in ([*one][:slots] for one in iterations):
        room = room.after(tuple(adapters))
        for one in adapters:
            twin.pop(one, None)
            twin[one] = None
        while len(twin) > slots:
            twin.popitem(last=False)
        assert room.held == tuple(twin)


requests = st.tuples(
    st.sampled_from(["", *"abcde"]), st.integers(1, 900), st.integers(1, 40), st.floats(-1.0, 0.0), st.booleans()
)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.lists(requests, min_size=1, max_size=12))
def test_every_iteration_fits_into_the_slots_and_everybody_ends(slots, given_requests):
    asked = [
        request(f"r{k}", prompt, max_tokens=most, arrived=arrived, best_effort=flex, adapter=adapter)
        for k, (adapter, prompt, most, arrived, flex) in enumerate(given_requests)
    ]
    play = Play(AdapterRoom(slots, 0.004), *asked)
    while play.one.requests:
        assert play.step() is not None, "requests wait, and nothing is planned"


def test_with_twice_as_many_adapters_as_slots_nobody_is_late_and_turns_are_long():
    asked = [request(f"r{k}", 64, max_tokens=120, adapter=f"a{k}") for k in range(8)]
    play = Play(AdapterRoom(4, 0.010), *asked)
    while play.one.requests:
        assert play.step() is not None
    assert play.late_s <= 0.0
    assert play.fills < len(play.plans) / 2


def test_one_that_comes_late_to_a_busy_slot_is_served_in_time_however_many_follow():
    play = Play(AdapterRoom(1, 0.010), request("crowd0", 32, max_tokens=20, adapter="a"))
    waits, number, ended_s = None, 0, None
    for _ in range(400):
        if number == 3:
            waits = request("waits", 32, max_tokens=20, arrived=play.now, adapter="b")
            play.one.requests["waits"] = waits
        while sum(one.shape.adapter == "a" for one in play.one.requests.values()) < 2:
            number += 1
            name = f"crowd{number}"
            play.one.requests[name] = request(name, 32, max_tokens=20, arrived=play.now, adapter="a")
        play.step()
        if waits is not None and "waits" not in play.one.requests and ended_s is None:
            ended_s = play.now
    assert ended_s is not None
    assert play.late_s <= 0.0


def test_a_slot_goes_to_whoever_is_due_before_but_not_for_nothing():
    room = AdapterRoom(1, 0.01, ("a",))

    def wishes(a_s, b_s, waited_for=True):
        return [Wish("b", b_s, waited_for), Wish("a", a_s, waited_for=True)]

    assert in_turn(wishes(2.0, 1.9), room, 0.0, 0.2) == ("a",)
    assert in_turn(wishes(2.0, 1.7), room, 0.0, 0.2) == ("b",)
    assert in_turn(wishes(0.2, 0.1), room, 0.0, 0.2) == ("b",)
    assert in_turn(wishes(9.0, 0.1, waited_for=False), room, 0.0, 0.2) == ("a",)


def test_each_adapter_beyond_the_first_makes_an_iteration_longer_by_its_share():
    none = planned(["", "", ""])
    assert planned(["a", "", ""]) == planned(["a", "a", "a"]) == none
    assert planned(["a", "b", ""]) == pytest.approx(none * 1.125)
    assert planned(["a", "b", "c"]) == pytest.approx(none * 1.25)
    # More than there are slots: as many as there are, several times.
    one = instance("i", *asked("abcd"), room=ROOM)
    assert one.round_s(len(one.requests), 400, one.adapters_of(one.requests.values())) == pytest.approx(
        2 * one.estimator.iteration_s(prefill=(), decode_batch=2, decode_context=100) * 1.25 + 4 * ROOM.fill_s
    )


def test_what_adapters_take_stays_while_only_sums_are_advanced():
    one = instance("i", *asked("abc"), room=ROOM)
    agenda = Agenda(node(one))
    demand = agenda.most_urgent(0.0)
    assert agenda.decoded(demand, 0.1)
    own_s = one.estimator.iteration_s(prefill=(), decode_batch=3, decode_context=102)
    assert demand.batch.iteration_s == pytest.approx(own_s * 1.25)


def test_an_adapter_that_gets_no_row_is_not_paid_for():
    filled = AdapterRoom(3, 0.01, ("a", "b"), share=0.125)
    waits = request("waits", 3000, arrived=0.9, adapter="b")  # its chunks would make the decode late
    one = instance("i", request("decodes", out=1, arrived=-2.0, adapter="a"), waits, room=filled)
    plan = next_plan(Agenda(node(one)), 0.195, POLICY)
    assert plan.adapters == ("a",)
    assert plan.predicted_s == one.estimator.iteration_s(prefill=(), decode_batch=1, decode_context=101)


ROOM = AdapterRoom(3, 0.01, ("a", "b", "c"), share=0.125)


def asked(adapters):
    return [request(f"r{k}", out=1, adapter=adapter) for k, adapter in enumerate(adapters)]


def planned(adapters):
    """What a decode of requests with these adapters is said to take, all in slots."""
    return next_plan(Agenda(node(instance("i", *asked(adapters), room=ROOM))), 0.0, POLICY).predicted_s
