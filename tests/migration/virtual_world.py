"""Time for a box of `profiled_box`: iterations take what their profile says, wires take a while, streams are moved.

Everything by seed. Says of every switch how long its stream paused, in iterations of the node that it came to.
"""

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from profiled_box import Shell

from llmhostd.domain import events
from llmhostd.engines.frames import SubmitFrame
from llmhostd.host.policies import HostPolicies
from llmhostd.migration.live_migration import Phase

WIRE_S = 0.0003
LOAD_S = 0.5
TICK_S = 0.25


@dataclass
class Switch:
    """A stream that went on at another node."""

    request_id: str
    token: int
    """The first one that is drawn there."""
    node_id: str
    live: bool
    """Whether it had caught up there. Others lost their place."""
    gap_s: float = 0.0
    iterations: int = 0
    """That ended there from when it came until this token, which is in the last of them."""
    death: bool = False
    """Whether a worker died meanwhile: this one, or another whose requests were taken in here first."""


@dataclass
class Outcome:
    """What happened to all streams."""

    streams: int = 0
    wrong: int = 0
    lost: int = 0
    kills: dict = field(default_factory=dict)
    """By what the migration was doing, and which end died."""
    switches: list = field(default_factory=list)
    usual_s: list = field(default_factory=list)
    """Between two tokens of a stream where nothing moved."""


class VirtualWorld:
    """Callers who always ask again, and operators who always move."""

    def __init__(self, specs, names, *, seed, live=True, callers=12, move_every_s=0.15, kill_every_s=None):
        self.random, self.live = Random(seed), live
        default = HostPolicies()
        migration = type(default.migration)(live=live)
        policies = HostPolicies(migration=migration)
        self.shell = Shell(*specs, names=names, policies=policies)
        self.names, self.now, self.caused, self.heap = names, 0.0, 0, []
        self.said, self.ended, self.switches = {}, {spec.id: [] for spec in specs}, []
        self.kills, self.deaths, self.planned = {}, [], {}
        self.inbox = {spec.id: deque() for spec in specs}
        self.shell.heard = lambda name, now: self.said[name].append(self.now)
        for _ in range(callers):
            self.later(self.random.uniform(0.0, 1.0), self.ask)
        self.later(TICK_S, self.tick)
        self.later(3.0, lambda: self.move_again(move_every_s))
        if kill_every_s:
            self.later(5.0, lambda: self.kill_again(kill_every_s))

    def run(self, switches):
        """Until so many streams have switched as they were meant to; then nobody asks any more, and all end."""
        while self.heap and sum(one.live == self.live for one in self.switches) < switches:
            self.next()
        self.names = ()
        limit_s = self.now + 300.0
        while self.shell.live() and self.now < limit_s:
            self.next()
        return self.outcome()

    def outcome(self):
        shell, done = self.shell, Outcome(streams=len(self.said), kills=self.kills)
        for name, why in shell.over.items():
            if why == "finished":
                done.wrong += shell.streams[name] != shell.expected[name]
        done.lost = len(shell.live())
        for one in self.switches:
            times = self.said[one.request_id]
            if 0 < one.token < len(times):
                before_s, after_s = times[one.token - 1], times[one.token]
                one.gap_s = after_s - before_s
                one.death = any(before_s <= at_s <= after_s for at_s in self.deaths)
                ends = self.ended[one.node_id]
                one.iterations = sum(before_s + WIRE_S < at_s <= after_s - WIRE_S + 1e-9 for at_s in ends)
                done.switches.append(one)
        moved = {(one.request_id, one.token) for one in self.switches}
        for name, times in self.said.items():
            steps = range(1, len(times))
            done.usual_s += [times[k] - times[k - 1] for k in steps if (name, k) not in moved]
        return done

    # What happens.

    def ask(self):
        if not self.names:
            return
        pick = self.random
        prompt = [pick.randrange(32000) for _ in range(pick.choice([40, 200, 600, 1500]))]
        self.shell.box.now = self.now
        name = self.shell.ask(pick.choice(self.names), prompt, pick.randrange(60, 200))
        self.said[name] = []
        self.carry()
        self.watch(name)

    def watch(self, name):
        """Its caller asks again, a little after the end."""
        if name in self.shell.over:
            self.later(self.now + self.random.uniform(0.05, 0.5), self.ask)
        else:
            self.later(self.now + 0.1, lambda: self.watch(name))

    def tick(self):
        self.hear(events.ClockTicked())
        self.later(self.now + TICK_S, self.tick)

    def move_again(self, every_s):
        fleet = self.shell.box.mind.fleet
        streams = [name for name in self.shell.live() if self.shell.streams[name] and name not in fleet.migrations]
        if streams and self.names:
            node_id = self.random.choice(sorted(self.shell.nodes))
            self.hear(events.MoveAsked(request_id=self.random.choice(streams), node_id=node_id))
        self.later(self.now + self.random.expovariate(1.0 / every_s), lambda: self.move_again(every_s))

    def kill_again(self, every_s):
        """One end of a migration dies, at whichever step it is."""
        fleet = self.shell.box.mind.fleet
        under_way = list(fleet.migrations.values())
        if under_way and self.names:
            migration = self.random.choice(under_way)
            end = self.random.choice(["source", "destination"])
            step = "preparing" if migration.phase is Phase.PREPARING else f"round {min(migration.rounds, 3)}"
            self.kills[step, end] = self.kills.get((step, end), 0) + 1
            node_id = fleet.instances[getattr(migration, end)].node_id
            self.deaths.append(self.now)
            self.inbox[node_id].clear()
            self.shell.box.now = self.now
            self.shell.kill(node_id)
            self.carry()
        self.later(self.now + self.random.expovariate(1.0 / every_s), lambda: self.kill_again(every_s))

    # How time passes.

    def later(self, at_s, what):
        self.caused += 1
        heappush(self.heap, (at_s, self.caused, what))

    def next(self):
        self.now, _, what = heappop(self.heap)
        what()

    def hear(self, event):
        self.shell.box.now = self.now
        self.shell.hear(event)
        self.carry()

    def carry(self):
        """What was sent goes on its way."""
        for node_id, one in self.shell.nodes.items():
            while one.commands:
                frame = one.commands.popleft()
                self.notice(node_id, frame)
                self.later(self.now + WIRE_S, lambda node=one, frame=frame: self.arrive(node, frame))
            while one.reports:
                report = one.reports.popleft()
                self.later(self.now + WIRE_S, lambda node=one, report=report: self.alive(node) and self.hear(report))

    def notice(self, node_id, frame):
        if isinstance(frame, SubmitFrame) and frame.command.request.tokens_out:
            request, live = frame.command.request, "tokens behind" in frame.command.because
            self.switches.append(Switch(request.id, request.tokens_out, node_id, live))

    def alive(self, one):
        return self.shell.nodes[one.spec.id] is one

    def arrive(self, one, frame):
        if self.alive(one):
            self.inbox[one.spec.id].append(frame)
            self.go_on(one)

    def go_on(self, one):
        """As a worker's loop: hear what came, then let the mind choose."""
        inbox = self.inbox[one.spec.id]
        while one.doing is None:
            while inbox:
                one.obey(inbox.popleft(), self.now)
            if not one.turn(self.now):
                break
        self.plan(one, "building", LOAD_S, one.built)
        self.plan(one, "doing", one.doing.predicted_s if one.doing else 0.0, one.finish)
        self.carry()

    def plan(self, one, what, takes_s, ends):
        under_way = getattr(one, what)
        if under_way is None or self.planned.get((one.spec.id, what)) is under_way:
            return
        self.planned[one.spec.id, what] = under_way

        def end():
            if self.alive(one):
                self.planned.pop((one.spec.id, what), None)
                ends(self.now)
                if what == "doing":
                    self.ended[one.spec.id].append(self.now)
                self.go_on(one)

        self.later(self.now + takes_s, end)
