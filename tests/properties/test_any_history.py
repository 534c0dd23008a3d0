"""No history of operations, failures and crashes over-commits a node, deadlocks it, starves a request or loses one.

The host mind with real node minds over simulated engines. Commands and reports wait on their wires, and operations in
the engines, until a rule lets them go on, so that everybody knows too little all the time. The shell between callers
and minds keeps the daemon's rule of whose tokens count. `HISTORIES=5000 pytest tests/properties` looks further.
"""

import os
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

sys.path.append(str(Path(__file__).parents[1] / "host"))

from boxes import MIB, Box, model, node, profile, shape
from imagined_instances import answer_tokens
from simulated_engine import SimulatedNode

from llmhostd.domain import commands, events, reports
from llmhostd.domain.actions import DeclineMove, GiveUpPlacement, QuarantineModel, Refusal, RefuseRequest
from llmhostd.domain.model import ModelState, Slo
from llmhostd.domain.request import Tier

HISTORIES = int(os.environ.get("HISTORIES", "0"))
"""How many are tried; 0: the few that are always the same."""

KV_TOKEN_BYTES = 16 << 10
SHAPES = {
    name: msgspec.structs.replace(shape(layers=layers), kv_bytes_per_token=KV_TOKEN_BYTES)
    for name, layers in {"wren": 12, "owl": 12, "rook": 13, "crow": 14}.items()
}
"""One shape shared by two, one of its own, one that nobody ever measured."""
NAMES = tuple(SHAPES)
MEASURED = ("wren", "owl", "rook")
PROMPTS = (5, 100, 401, 1000, 2001, 3900)
TIERS = (Tier.LATENCY_SENSITIVE, Tier.LATENCY_SENSITIVE, Tier.BEST_EFFORT)
SLOS = (Slo(ttft_s=1.0, tpot_s=0.1), Slo(ttft_s=6.0, tpot_s=0.5))
SIZES_MIB = (360, 400, 700, 760, 1000, 2500)
ENDS = ("well", "well", "well", "well", "fails", "breaks")
FOR_GOOD = (Refusal.MODEL_BROKEN, Refusal.TOO_LARGE)


def added(name):
    return events.ModelAdded(spec=model(name, SHAPES[name]))


def changed(name):
    """Another checkpoint of that name."""
    return events.ModelAdded(spec=model(name, SHAPES["owl" if name == "rook" else "rook"]))


ORDERS = (
    lambda name: events.WarmUpAsked(name=name),
    lambda name: events.UnloadAsked(name=name),
    lambda name: events.MeasureAsked(name=name),
    lambda name: events.ModelReleased(name=name),
    lambda name: events.ModelRemoved(name=name),
    added,
    added,
    changed,
)
"""What operators say of models."""


def known(name, hardware):
    slower = 3.0 if hardware == "slow" else 1.0
    of = SHAPES[name]
    return profile(of, hardware=hardware, step_s=0.02 * slower, prefill_token_s=0.0002 * slower)


class History(RuleBasedStateMachine):
    """A box, its callers, and whatever happens to them."""

    @initialize(
        sizes=st.lists(st.tuples(st.sampled_from(SIZES_MIB), st.sampled_from(["cpu", "gpu"])), min_size=1, max_size=3),
    )
    def begin(self, sizes):
        specs = [
            node(f"{kind}{n}", mib, hardware="slow" if kind == "cpu" else "test") for n, (mib, kind) in enumerate(sizes)
        ]
        measured = [known(name, spec.hardware_key) for spec in specs for name in MEASURED]
        self.box = Box(*specs, models=[model(name, SHAPES[name]) for name in SHAPES], profiles=measured)
        self.specs = {spec.id: spec for spec in specs}
        self.nodes = {spec.id: self.start(spec) for spec in specs}
        self.streams, self.told, self.over, self.tiers, self.answers = {}, {}, {}, {}, {}

    def start(self, spec):
        def profile_of(of):
            return known(next(name for name, one in SHAPES.items() if one == of), spec.hardware_key)

        return SimulatedNode(spec, profile_of)

    # The shell: text first, then the decisions.

    def hear(self, event):
        if isinstance(event, reports.IterationReported):
            self.stream(event)
        if isinstance(event, reports.RequestFailed):
            self.fail(event)
        if isinstance(event, reports.NodeDown):
            self.nodes[event.node_id].commands.clear()
        for action in self.box(event):
            assert action.because, f"{type(action).__name__} says no reason"
            match action:
                case RefuseRequest():
                    self.refuse(action)
                case QuarantineModel() | GiveUpPlacement() | DeclineMove():
                    pass
                case _:
                    if isinstance(action, commands.SubmitRequest):
                        assert action.request.tokens_out == len(self.streams[action.request.id])
                        self.told[action.request.id] = (action.node_id, action.instance_id)
                    self.nodes[action.node_id].commands.append(action)
        live = self.box.mind.fleet.requests
        assert live.keys() == {key for key in self.streams if key not in self.over}, "a request was lost"
        for request_id, request in live.items():
            assert request.load.tokens_out == len(self.streams[request_id]), "mind and shell disagree"
        for each in self.box.mind.fleet.nodes.values():
            there = self.nodes[each.spec.id]
            if there.solid and there.at_rest:  # what the host was told of it is true
                over_bytes = self.box.mind.budget.over_bytes(each)
                assert over_bytes <= 0, f"{each.spec.id}: {over_bytes} bytes more were promised than there are"

    def stream(self, report):
        for row in report.rows:
            counts = self.told.get(row.request_id) == (report.node_id, report.instance_id)
            if not counts or row.request_id in self.over:
                continue
            assert row.tokens in ((), (len(self.streams[row.request_id]),)), "lost, doubled or out of order"
            self.streams[row.request_id] += row.tokens
            if row.finish:
                self.over[row.request_id] = "finished"

    def fail(self, report):
        told = self.told.get(report.request_id)
        if report.request_id not in self.over and told and told[0] == report.node_id:
            assert report.error
            self.over[report.request_id] = "failed"

    def refuse(self, action):
        assert action.request_id not in self.over
        admitted = action.request_id in self.told or self.tiers[action.request_id] is Tier.BEST_EFFORT
        hopeless = action.refusal in FOR_GOOD or "memory that is left of this box" in action.because
        assert not admitted or hopeless, f"{action.request_id} was admitted: {action.because}"
        self.over[action.request_id] = "refused"

    # What callers and operators do.

    @rule(
        burst=st.lists(
            st.tuples(st.sampled_from(NAMES), st.sampled_from(PROMPTS), st.sampled_from(TIERS), st.sampled_from(SLOS)),
            min_size=1, max_size=8,
        ),
        apart_s=st.sampled_from([0.0, 0.02, 0.3]),
    )  # fmt: skip
    def many_ask(self, burst, apart_s):
        for one in burst:
            self.ask(*one)
            if apart_s:
                self.box.now += apart_s
                self.exchange()

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 6), slo=st.sampled_from(SLOS))
    def many_ask_one_model(self, name, count, slo):
        for k in range(count):
            self.ask(name, PROMPTS[(count + k) % len(PROMPTS)], Tier.LATENCY_SENSITIVE, slo)
        self.exchange()

    def ask(self, name, prompt, tier, slo):
        request = self.box.shape_of(name, prompt=prompt, tier=tier, slo=slo)
        self.streams[request.id], self.tiers[request.id] = (), tier
        self.answers[request.id] = answer_tokens(prompt)
        self.hear(events.RequestArrived(request=request))

    @rule(data=st.data())
    def leave(self, data):
        live = [request_id for request_id in self.streams if request_id not in self.over]
        if live:
            request_id = data.draw(st.sampled_from(live))
            self.over[request_id] = "left"
            self.hear(events.RequestCancelled(request_id=request_id))

    @rule(name=st.sampled_from(NAMES), what=st.sampled_from(ORDERS))
    def operate(self, name, what):
        self.hear(what(name))

    @rule(data=st.data(), name=st.sampled_from(NAMES), resident=st.booleans(), unused_s=st.floats(0.0, 100.0))
    def remember(self, data, name, resident, unused_s):
        node_id = self.node_of(data).spec.id
        self.hear(events.PlacementKnown(model=name, node_id=node_id, resident=resident, unused_s=unused_s))

    @rule(data=st.data())
    def move(self, data):
        live = self.live()
        if live:
            node_id = self.node_of(data).spec.id
            self.hear(events.MoveAsked(request_id=data.draw(st.sampled_from(live)), node_id=node_id))

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def move_model(self, name, data):
        node_id = self.node_of(data).spec.id
        for request_id, request in list(self.box.mind.fleet.requests.items()):
            if request.load.shape.model == name:
                self.hear(events.MoveAsked(request_id=request_id, node_id=node_id))

    @rule(data=st.data(), drains=st.booleans())
    def drain(self, data, drains):
        kind = events.DrainAsked if drains else events.DrainEnded
        self.hear(kind(node_id=self.node_of(data).spec.id))

    @rule(after=st.sampled_from([0.1, 1.0, 10.0, 40.0]))
    def tick(self, after):
        self.box.now += after
        self.hear(events.ClockTicked())

    # What happens on the wires and below.

    @rule(data=st.data(), commands_too=st.integers(0, 5), reports_too=st.integers(0, 5))
    def deliver(self, data, commands_too, reports_too):
        """Some of what waits on a node's wires arrives."""
        one = self.node_of(data)
        for _ in range(min(commands_too, len(one.commands))):
            one.obey(one.commands.popleft(), self.box.now)
        for _ in range(min(reports_too, len(one.reports))):
            self.hear(one.reports.popleft())

    @rule(
        data=st.data(),
        what=st.sampled_from(["finish", "resized", "compiled", "built", "removed"]),
        luck=st.sampled_from(ENDS),
    )
    def end(self, data, what, luck):
        one = self.node_of(data)
        self.box.now += 0.03
        self.end_on(one, what, luck)

    @rule(data=st.data(), times=st.integers(1, 6))
    def work(self, data, times):
        """A node goes on by itself; the wires are slow."""
        one = self.node_of(data)
        for _ in range(times):
            self.box.now += 0.02
            self.go_on(one)

    @rule(times=st.integers(1, 6))
    def go_on_together(self, times):
        """The wires are fast and everybody computes."""
        for _ in range(times):
            self.box.now += 0.02
            self.exchange()

    @rule(data=st.data(), mib=st.sampled_from([0, 200, *SIZES_MIB]))
    def change_memory(self, data, mib):
        one = self.node_of(data)
        if one.alive:
            one.set_budget(mib * MIB, self.box.now)

    @rule(data=st.data(), blamed=st.booleans(), back=st.booleans())
    def crash(self, data, blamed, back):
        one = self.node_of(data)
        if one.alive:
            working = one.die()
            suspect = working if blamed else None
            one.reports.append(reports.NodeDown(node_id=one.spec.id, suspect=suspect, because="killed by signal 9"))
        if back:
            while one.reports:
                self.hear(one.reports.popleft())
            self.rise(one)

    def node_of(self, data):
        return self.nodes[data.draw(st.sampled_from(sorted(self.nodes)))]

    def end_on(self, one, what, luck="well"):
        under_way = {"finish": one.doing, "resized": one.resizes, "built": one.building, "removed": one.removals}
        under_way["compiled"] = one.building
        if one.alive and under_way[what]:
            getattr(one, what)(self.box.now, luck)
        elif luck == "breaks":
            one.spoilt = True

    def go_on(self, one):
        """All operations of a node end, and it is asked what to do next."""
        for what in ("removed", "built", "resized", "finish"):
            self.end_on(one, what)
        if one.alive:
            one.turn(self.box.now)

    def exchange(self):
        for one in self.nodes.values():
            while one.alive and one.commands:
                one.obey(one.commands.popleft(), self.box.now)
            self.go_on(one)
            while one.reports:
                self.hear(one.reports.popleft())

    def rise(self, one):
        """A worker is started again, once its death was heard of."""
        if one.alive or one.reports:
            return
        fresh = self.nodes[one.spec.id] = self.start(one.spec)
        fresh.reports.append(reports.NodeUp(node_id=one.spec.id, memory_bytes=one.spec.memory_bytes))

    # What must hold in the end.

    def teardown(self):
        if not hasattr(self, "box"):
            return
        self.mend()
        self.let_admitted_end()
        self.give_memory_back()
        self.let_all_end()
        self.agree()

    def mend(self):
        """Nothing fails any more."""
        for one in list(self.nodes.values()):
            while one.reports:
                self.hear(one.reports.popleft())
            self.rise(one)
            self.hear(events.DrainEnded(node_id=one.spec.id))

    def let_admitted_end(self):
        """Whoever was admitted ends, however many others go on asking."""
        admitted = [key for key in self.live() if self.tiers[key] is Tier.LATENCY_SENSITIVE]
        for turn in range(1500):
            if all(key in self.over for key in admitted):
                return
            if turn % 3 == 0:
                self.ask(NAMES[turn // 3 % len(NAMES)], 401, Tier.LATENCY_SENSITIVE, SLOS[turn % 2])
            self.pass_time()
        raise AssertionError(f"starved: {[key for key in admitted if key not in self.over]}")

    def give_memory_back(self):
        """What nobody waits for may wait until its node has again what it once had."""
        for one in self.nodes.values():
            one.set_budget(self.box.mind.fleet.nodes[one.spec.id].most_bytes, self.box.now)

    def let_all_end(self):
        """However much there is to do, somebody ends every so often."""
        while live := self.live():
            for _ in range(1000):
                self.pass_time()
                if len(self.live()) < len(live):
                    break
            else:
                raise AssertionError(f"somebody waits for ever: {live}")

    def live(self):
        return [key for key in self.streams if key not in self.over]

    def pass_time(self):
        self.box.now += 0.1
        self.hear(events.ClockTicked())
        self.exchange()

    def agree(self):
        """Everybody knows the same, and nothing is left over."""
        for _ in range(30):
            self.pass_time()
        fleet = self.box.mind.fleet
        for request_id, why in self.over.items():
            assert why != "finished" or self.streams[request_id] == tuple(range(self.answers[request_id]))
        for one in self.nodes.values():
            record = fleet.nodes[one.spec.id]
            assert not record.station, "an operation waits for ever"
            assert not record.leaving
            assert not record.dropping
            assert record.kept_for is None
            assert not one.where
            assert not one.mind.requests.where
            mine = {each.id: each for each in fleet.instances_on(record)}
            assert mine.keys() == one.hosted.keys() == one.mind.instances.keys()
            for name, instance in mine.items():
                hosted = one.hosted[name]
                assert instance.reported_bytes == hosted.weights_bytes or instance.state is ModelState.LOADING
                assert instance.kv_bytes == hosted.kv_blocks * 32 * KV_TOKEN_BYTES


EXAMPLES, STEPS = (HISTORIES, 50) if HISTORIES else (60, 30)
History.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, derandomize=not HISTORIES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
TestAnyHistory = pytest.mark.timeout(20 * 60 + 10 * HISTORIES)(History.TestCase)
