"""Streams that move live, whatever is on the wires and whoever dies: does anybody see a gap, a repeat, another token?

ServerlessLLM §5.4 is the list: completion, crashes of either end and cancellation at every step, and destinations that
need their memory themselves.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from profiled_box import MIB, Shell, node

from llmhostd.domain import events
from llmhostd.domain.request import Tier
from llmhostd.host.policies import HostPolicies
from llmhostd.migration.live_migration import MigrationPolicy

NAMES = ("wren", "owl")
SIZES_MIB = (345, 700, 2000)


class LiveMoves(RuleBasedStateMachine):
    @initialize(sizes=st.lists(st.sampled_from(SIZES_MIB), min_size=2, max_size=3), near=st.booleans())
    def begin(self, sizes, near):
        """`near`: a stream does not switch before the gap shrinks no more, which takes rounds."""
        specs = [node(f"cpu{n}", mib) for n, mib in enumerate(sizes)]
        policies = HostPolicies(migration=MigrationPolicy(close_in_tokens=0.0 if near else 2.0))
        self.shell = Shell(*specs, names=NAMES, policies=policies)
        self.asked = 0
        self.stream_and_move(NAMES[0], 700, 40)

    @rule(name=st.sampled_from(NAMES), prompt=st.sampled_from([5, 700, 1500]), most=st.integers(8, 40))
    def stream_and_move(self, name, prompt, most):
        """A stream that is on its way to every node that takes it."""
        self.asked += 1
        request_id = self.shell.ask(name, [(self.asked * 17 + k) % 32000 for k in range(prompt)], most)
        for _ in range(8):
            if request_id not in self.shell.over and not self.shell.streams[request_id]:
                self.exchange()
        for node_id in self.shell.nodes:
            self.shell.hear(events.MoveAsked(request_id=request_id, node_id=node_id))

    @rule(
        name=st.sampled_from(NAMES), prompt=st.sampled_from([5, 90, 700]), most=st.integers(1, 12), flex=st.booleans()
    )
    def ask(self, name, prompt, most, flex):
        self.asked += 1
        tier = Tier.BEST_EFFORT if flex else Tier.LATENCY_SENSITIVE
        self.shell.ask(name, [(self.asked * 31 + k) % 32000 for k in range(prompt)], most, tier=tier)

    @rule(data=st.data())
    def move(self, data):
        live = self.shell.live()
        if live:
            request_id = data.draw(st.sampled_from(live))
            self.shell.hear(events.MoveAsked(request_id=request_id, node_id=self.node_id(data)))

    @rule(data=st.data())
    def move_all(self, data):
        node_id = self.node_id(data)
        for request_id in self.shell.live():
            self.shell.hear(events.MoveAsked(request_id=request_id, node_id=node_id))

    @rule(data=st.data(), drains=st.booleans())
    def drain(self, data, drains):
        kind = events.DrainAsked if drains else events.DrainEnded
        self.shell.hear(kind(node_id=self.node_id(data)))

    @rule(data=st.data())
    def leave(self, data):
        live = self.shell.live()
        if live:
            self.shell.leave(data.draw(st.sampled_from(live)))

    @rule(data=st.data(), mib=st.sampled_from([*SIZES_MIB, 330]))
    def squeeze(self, data, mib):
        self.node(data).squeeze(mib * MIB, self.shell.box.now)

    @rule(data=st.data())
    def kill(self, data):
        self.shell.kill(self.node_id(data))

    @rule(after=st.sampled_from([0.1, 1.0, 40.0, 70.0]))
    def tick(self, after):
        self.shell.box.now += after
        self.shell.hear(events.ClockTicked())

    @rule(data=st.data(), count=st.integers(1, 5))
    def obey(self, data, count):
        one = self.node(data)
        for _ in range(min(count, len(one.commands)) if one.doing is None else 0):
            one.obey(one.commands.popleft(), self.shell.box.now)

    @rule(data=st.data(), count=st.integers(1, 5))
    def hear(self, data, count):
        one = self.node(data)
        for _ in range(min(count, len(one.reports))):
            self.shell.hear(one.reports.popleft())

    @rule(data=st.data(), after=st.floats(0.0, 0.1), times=st.integers(1, 4))
    def work(self, data, after, times):
        """A node goes on by itself; nothing is on the wires."""
        for _ in range(times):
            self.shell.box.now += after
            self.go_on(self.node(data))

    @rule(times=st.integers(1, 12))
    def go_on_together(self, times):
        """The wires are fast and everybody computes."""
        for _ in range(times):
            self.exchange()

    def go_on(self, one):
        now = self.shell.box.now
        if one.building:
            one.built(now)
        if one.doing:
            one.finish(now)
        one.turn(now)

    def exchange(self):
        self.shell.box.now += 0.02
        for one in list(self.shell.nodes.values()):
            while one.commands and one.doing is None:
                one.obey(one.commands.popleft(), self.shell.box.now)
            self.go_on(one)
            while one.reports:
                self.shell.hear(one.reports.popleft())

    def node_id(self, data):
        return data.draw(st.sampled_from(sorted(self.shell.nodes)))

    def node(self, data):
        return self.shell.nodes[self.node_id(data)]

    def teardown(self):
        """Left alone, who was not refused and has not left gets the whole answer, and nothing is left over."""
        if not hasattr(self, "shell"):
            return
        shell = self.shell
        for name, one in shell.nodes.items():
            one.squeeze(2000 * MIB, shell.box.now)
            shell.hear(events.DrainEnded(node_id=name))
        for _ in range(600):
            if not shell.live() and not any(one.commands or one.doing for one in shell.nodes.values()):
                break
            shell.hear(events.ClockTicked())
            self.exchange()
        assert not shell.live(), "somebody waits for ever"
        assert all(shell.streams[name] == shell.expected[name] for name, why in shell.over.items() if why == "finished")
        fleet = shell.box.mind.fleet
        assert not fleet.requests
        assert not fleet.migrations
        assert not fleet.following
        assert not any(one.dropping or one.leaving for one in fleet.nodes.values())
        assert not any(one.where or one.kv_used_bytes for one in shell.nodes.values())


LiveMoves.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestLiveMoves = LiveMoves.TestCase
