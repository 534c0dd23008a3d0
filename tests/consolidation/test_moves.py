"""Moves of every kind, evictions and crashes, with any delay on the wires: is any token lost, doubled or out of order?

The host mind against nodes that do as they are told, and a shell that keeps the daemon's rule of whose tokens count.
Commands and reports wait on their wires until a rule delivers them, so that everybody knows too little all the time.
"""

import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

sys.path.append(str(Path(__file__).parents[1] / "host"))

from boxes import Box, node

from llmhostd.domain import commands, events, reports
from llmhostd.domain.actions import DeclineMove, RefuseRequest
from llmhostd.domain.model import ModelState
from llmhostd.domain.request import FinishReason, Tier

NAMES = ("wren", "owl", "rook")
ANSWER_TOKENS = 8
HELD = {ModelState.WARM: 20, ModelState.RESIDENT: 320, ModelState.COLD: 0}


@dataclass
class ObedientNode:
    """Loads, computes and lets go as it is told; at most one stay of a request at a time."""

    name: str
    commands: deque = field(default_factory=deque)
    reports: deque = field(default_factory=deque)
    instances: dict = field(default_factory=dict)
    """Instance -> {request: tokens that it has}."""
    staged: dict = field(default_factory=dict)
    """Request -> [instance, context tokens that were brought, of which so many are computed]."""

    def obey(self, command):
        match command:
            case commands.LoadInstance():
                self.instances[command.instance_id] = {}
                self.say_state(command.instance_id, ModelState.WARM)
            case commands.RestInstance():
                self.assert_empty(command.instance_id)
                self.say_state(command.instance_id, ModelState.WARM)
            case commands.UnloadInstance():
                self.assert_empty(command.instance_id)
                del self.instances[command.instance_id]
                self.say_state(command.instance_id, ModelState.COLD)
            case commands.SubmitRequest():
                assert not any(command.request.id in each for each in self.instances.values()), "it is here twice"
                self.staged.pop(command.request.id, None)
                self.instances[command.instance_id][command.request.id] = command.request.tokens_out
            case commands.StageRequest():
                self.bring(command)
            case commands.RecallRequest() | commands.CancelRequest():
                recalled = isinstance(command, commands.RecallRequest)
                if self.staged.pop(command.request_id, None) and recalled:
                    self.give_back(command.request_id, staged=True)
                elif self.let_go(command.request_id) and recalled:
                    self.give_back(command.request_id)

    def bring(self, command):
        name, stage = command.request.id, self.staged.get(command.request.id)
        if not command.known_tokens:
            assert stage is None, "it is staged twice"
            assert not any(name in each for each in self.instances.values()), "it is staged where it runs"
            self.staged[name] = [command.instance_id, command.request.context_tokens, 0]
        elif stage is not None:
            assert stage[1] == command.known_tokens, "a round was lost"
            stage[1] = command.request.context_tokens

    def assert_empty(self, instance_id):
        assert not self.instances[instance_id], "somebody is still there"
        assert not any(stage[0] == instance_id for stage in self.staged.values()), "somebody is still to come there"

    def let_go(self, request_id):
        return any(each.pop(request_id, None) is not None for each in self.instances.values())

    def give_back(self, request_id, *, staged=False):
        self.reports.append(
            reports.RequestReturned(node_id=self.name, request_id=request_id, because="test", staged=staged)
        )

    def computes(self, instance_id):
        return self.instances[instance_id] or any(stage[0] == instance_id for stage in self.staged.values())

    def compute(self, instance_id, now):
        """One iteration: a token for everybody there, and a chunk of everybody who is to come."""
        rows, running = [], self.instances[instance_id]
        for request_id, stage in self.staged.items():
            chunk = min(stage[1] - 1 - stage[2], 512) if stage[0] == instance_id else 0
            if chunk:
                stage[2] += chunk
                rows.append(reports.RowReport(request_id=request_id, prefilled=chunk))
        for request_id, tokens in list(running.items()):
            done = tokens + 1 == ANSWER_TOKENS
            finish = FinishReason.STOP if done else None
            rows.append(reports.RowReport(request_id=request_id, tokens=(tokens,), finish=finish))
            running[request_id] = tokens + 1
            if done:
                del running[request_id]
        self.reports.append(
            reports.IterationReported(
                node_id=self.name, instance_id=instance_id, started_s=now, duration_s=0.0, predicted_s=0.0,
                rows=tuple(rows), because="test",
            )
        )  # fmt: skip
        self.say_state(instance_id, ModelState.RESIDENT)

    def say_state(self, instance_id, state):
        held_bytes = HELD[state] << 20
        self.reports.append(
            reports.InstanceReported(
                node_id=self.name, instance_id=instance_id, state=state, held_bytes=held_bytes, kv_bytes=0,
                kv_used_bytes=0,
            )
        )  # fmt: skip


class Moves(RuleBasedStateMachine):
    @initialize(sizes=st.lists(st.sampled_from([330, 646, 700, 2000]), min_size=2, max_size=3))
    def begin(self, sizes):
        specs = [node(f"cpu{n}", mib) for n, mib in enumerate(sizes)]
        self.box = Box(*specs, models=NAMES)
        self.nodes = {spec.id: ObedientNode(spec.id) for spec in specs}
        self.streams, self.told, self.over = {}, {}, {}

    def hear(self, event):
        """As the daemon does: text first, then the decisions."""
        if isinstance(event, reports.IterationReported):
            for row in event.rows:
                if not row.tokens:  # a chunk of somebody who was staged; he may have been told to run there meanwhile
                    assert row.prefilled
                    continue
                counts = self.told[row.request_id] == (event.node_id, event.instance_id)
                if counts and self.over.get(row.request_id) != "left":
                    assert row.request_id not in self.over
                    assert row.tokens == (len(self.streams[row.request_id]),), "lost, doubled or out of order"
                    self.streams[row.request_id] += row.tokens
                    if row.finish:
                        self.over[row.request_id] = "finished"
        for action in self.box(event):
            if isinstance(action, DeclineMove):
                continue
            if isinstance(action, RefuseRequest):
                assert not self.streams[action.request_id]
                self.over[action.request_id] = "refused"
                continue
            if isinstance(action, commands.SubmitRequest):
                assert action.request.tokens_out == len(self.streams[action.request.id])
                self.told[action.request.id] = (action.node_id, action.instance_id)
            self.nodes[action.node_id].commands.append(action)
        for request_id, request in self.box.mind.fleet.requests.items():
            assert request.load.tokens_out == len(self.streams[request_id]), "mind and shell disagree"

    def node_of(self, data):
        return self.nodes[data.draw(st.sampled_from(sorted(self.nodes)))]

    @rule(name=st.sampled_from(NAMES), prompt=st.sampled_from([5, 100, 2000, 6000]), flex=st.booleans())
    def ask(self, name, prompt, flex):
        tier = Tier.BEST_EFFORT if flex else Tier.LATENCY_SENSITIVE
        request = self.box.shape_of(name, prompt=prompt, tier=tier)
        self.streams[request.id] = ()
        self.hear(events.RequestArrived(request=request))

    @rule(data=st.data(), count=st.integers(1, 5))
    def deliver_commands(self, data, count):
        one = self.node_of(data)
        for _ in range(min(count, len(one.commands))):
            one.obey(one.commands.popleft())

    @rule(data=st.data(), count=st.integers(1, 5))
    def deliver_reports(self, data, count):
        one = self.node_of(data)
        for _ in range(min(count, len(one.reports))):
            self.hear(one.reports.popleft())

    @rule(data=st.data(), after=st.floats(0.0, 0.1))
    def compute(self, data, after):
        self.box.now += after
        self.compute_on(self.node_of(data))

    @rule(times=st.integers(1, 3))
    def go_on(self, times):
        """The wires are fast and everybody computes."""
        for _ in range(times):
            self.box.now += 0.02
            self.exchange()

    @rule(data=st.data(), back=st.booleans())
    def drain_while_it_computes(self, data, back):
        """What a node says last comes after its requests were told to go on elsewhere, or even to come back."""
        one = self.node_of(data)
        self.hear(events.DrainAsked(node_id=one.name))
        self.compute_on(one)
        if back:
            self.hear(events.DrainEnded(node_id=one.name))
            other = self.node_of(data)
            self.hear(events.DrainAsked(node_id=other.name))
            self.hear(events.DrainEnded(node_id=other.name))
        while one.reports:
            self.hear(one.reports.popleft())

    @rule(data=st.data())
    def evict(self, data):
        one = self.node_of(data)
        if one.staged and data.draw(st.booleans()):
            request_id = data.draw(st.sampled_from(sorted(one.staged)))
            del one.staged[request_id]
            one.give_back(request_id, staged=True)
            return
        here = [request_id for running in one.instances.values() for request_id in running]
        if here:
            request_id = data.draw(st.sampled_from(here))
            one.let_go(request_id)
            one.give_back(request_id)

    @rule(data=st.data(), whole=st.booleans())
    def move(self, data, whole):
        live = [request_id for request_id in self.streams if request_id not in self.over]
        name = self.node_of(data).name
        if whole:
            for request_id in live:
                self.hear(events.MoveAsked(request_id=request_id, node_id=name))
        elif live:
            self.hear(events.MoveAsked(request_id=data.draw(st.sampled_from(live)), node_id=name))

    @rule(data=st.data())
    def leave(self, data):
        live = [request_id for request_id in self.streams if request_id not in self.over]
        if live:
            request_id = data.draw(st.sampled_from(live))
            self.over[request_id] = "left"
            self.hear(events.RequestCancelled(request_id=request_id))

    @rule(data=st.data())
    def crash(self, data):
        one = self.node_of(data)
        self.nodes[one.name] = ObedientNode(one.name)
        self.hear(reports.NodeDown(node_id=one.name, suspect=None, because="killed"))
        self.rise(one.name)

    @rule(data=st.data(), drains=st.booleans())
    def drain(self, data, drains):
        kind = events.DrainAsked if drains else events.DrainEnded
        self.hear(kind(node_id=self.node_of(data).name))

    @rule(after=st.sampled_from([0.1, 1.0, 40.0]))
    def tick(self, after):
        self.box.now += after
        self.hear(events.ClockTicked())

    def compute_on(self, one):
        for instance_id in [key for key in one.instances if one.computes(key)]:
            one.compute(instance_id, self.box.now)

    def exchange(self):
        for one in self.nodes.values():
            while one.commands:
                one.obey(one.commands.popleft())
            self.compute_on(one)
            while one.reports:
                self.hear(one.reports.popleft())

    def rise(self, name):
        self.hear(reports.NodeUp(node_id=name, memory_bytes=self.box.mind.fleet.nodes[name].spec.memory_bytes))

    def teardown(self):
        """Left alone, everybody who was not refused and has not left gets the whole answer."""
        if not hasattr(self, "box"):
            return
        for name in self.nodes:
            self.hear(events.DrainEnded(node_id=name))
        for _ in range(400):
            if len(self.over) == len(self.streams):
                break
            self.box.now += 0.3
            self.hear(events.ClockTicked())
            self.exchange()
        assert len(self.over) == len(self.streams), "somebody waits for ever"
        assert not self.box.mind.fleet.requests
        for request_id, why in self.over.items():
            assert why != "finished" or self.streams[request_id] == tuple(range(ANSWER_TOKENS))


Moves.TestCase.settings = settings(
    max_examples=80, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestMoves = Moves.TestCase
