"""What happens next in a simulated box?

A heap of (time, sequence, what): one host mind, its node minds and their devices, callers who ask and sometimes leave.
Things at the same time happen in the order in which they were caused.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from heapq import heappop, heappush

import msgspec

from llmhostd.domain.actions import DeclineMove, GiveUpPlacement, HostAction, QuarantineModel, RefuseRequest, StartEnded
from llmhostd.domain.commands import KeepWeights, NodeCommand, ReleaseWeights, SubmitRequest
from llmhostd.domain.events import ClockTicked, HostEvent, ModelAdded, ProfileKnown, RequestArrived, RequestCancelled
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import NodeId, RequestId
from llmhostd.domain.node_events import NodeAction, RunIteration
from llmhostd.domain.profile import Profile
from llmhostd.domain.reports import IterationReported, NodeDown, NodeReport, NodeUp, WeightsKept
from llmhostd.domain.request import RequestShape
from llmhostd.host import invariants as host_invariants
from llmhostd.host.core import HostMind
from llmhostd.node import invariants as node_invariants
from llmhostd.simulator.box import Box
from llmhostd.simulator.callers import AskAgain, Callers
from llmhostd.simulator.chance import Chance, Purpose
from llmhostd.simulator.device import Device, Physics
from llmhostd.simulator.faults import Misfortune
from llmhostd.simulator.meter import Meter
from llmhostd.simulator.minds import Minds
from llmhostd.simulator.workload import SimulatedRequest

TICK_S = 1.0
QUIET_S = 900.0
"""When nothing but ticks and deaths happened for so long, nothing else will: whoever still waits is lost."""


class World:
    """One simulated box, from its first request to its last token."""

    def __init__(
        self,
        box: Box,
        requests: Sequence[SimulatedRequest],
        *,
        seed: int,
        physics: Physics,
        misfortune: Misfortune,
        check_every: int,
        check_counts_every: int = 1,
        measured: bool = True,
        truth: Sequence[Profile] | None = None,
        minds: Minds | None = None,
        ask_again: AskAgain | None = None,
        tick_s: float = TICK_S,
        told: Sequence[tuple[float, HostEvent]] = (),
    ) -> None:
        """Begin at time 0, with every worker up.

        `measured`: profiles are known from the start; `truth`: what iterations really take, where the box says
        otherwise. `check_every`, `check_counts_every`: steps of the host between two checks of everything, of sums.
        `told`: what else the host hears, and when: what an operator asks for.
        """
        self.now = 0.0
        self._minds = minds or Minds()
        self.host = self._minds.host(box.nodes)
        self.callers = Callers(requests, ask_again or AskAgain())
        self.meter = Meter(box.nodes, until_s=max((one.shape.arrived_s for one in requests), default=0.0))
        self.counts: Counter[str] = Counter()
        """Decisions and reports by name, and `deaths`."""
        self.computed_s = 0.0
        """Device time, over all nodes."""
        self._box = box
        self._physics = physics
        self._misfortune = misfortune
        self._check_every, self._check_counts_every = check_every, check_counts_every
        self._tick_s = tick_s
        self._noise = Chance(seed, Purpose.NOISE)
        self._profiles = {(each.shape_key, each.hardware_key): each for each in truth or box.profiles}
        self._devices: dict[NodeId, Device] = {}
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._caused = self._steps = 0
        self._active_s = 0.0
        self._digest = blake2b(digest_size=8)
        self._encoder = msgspec.msgpack.Encoder()
        self._begin(requests, measured=measured)
        for at_s, event in told:
            self.later(at_s, partial(self._hear, event))

    @property
    def digest(self) -> str:
        """Of every decision so far, and when it was taken."""
        return self._digest.hexdigest()

    def run(self) -> None:
        """Let everything happen, until every caller has an answer."""
        while self._heap and self.callers.waiting and self.now - self._active_s < QUIET_S:
            self.now, _, what = heappop(self._heap)
            what(self.now)
        self.meter.end(self.now)

    def later(self, at_s: float, what: Callable[[float], None]) -> None:
        """Let something happen at a time."""
        self._caused += 1
        heappush(self._heap, (at_s, self._caused, what))

    def report(self, report: NodeReport) -> None:
        """Tell the host, next."""
        self.later(self.now, lambda _: self._tell(report))

    def decided(self, action: NodeAction | HostAction) -> None:
        """Take note of a decision."""
        self.counts[type(action).__name__] += 1
        if isinstance(action, RunIteration):  # by far the most: its prediction tells two different ones apart
            said: object = (self.now, action.instance_id, len(action.rows), action.predicted_s)
        else:
            said = (self.now, action)
        self._digest.update(self._encoder.encode(said))

    def answer_tokens(self, request_id: RequestId) -> int:
        """How long an answer will be."""
        return self.callers.observations[request_id].asked.output_tokens

    def _begin(self, requests: Sequence[SimulatedRequest], *, measured: bool) -> None:
        for spec in self._box.nodes:
            self._start_worker(spec, 0.0)
        for model in self._box.models:
            self._tell(ModelAdded(spec=model))
        for profile in self._box.profiles if measured else ():
            self._tell(ProfileKnown(profile=profile))
        for one in requests:
            self.later(one.shape.arrived_s, partial(self._arrive, one))
        self.later(self._tick_s, self._tick)

    def _tell(self, event: HostEvent) -> None:
        """Let the host mind hear something, and do what it says."""
        if isinstance(event, IterationReported):
            self.computed_s += event.duration_s
            self.callers.streamed(event, self.now)
        if not isinstance(event, ClockTicked | NodeUp | NodeDown):
            self._active_s = self.now
        for action in self.host.step(event, self.now):
            self.decided(action)
            self._perform(action)
        self._check()

    def _perform(self, action: HostAction) -> None:
        match action:
            case RefuseRequest():
                again_s = self.callers.refused(action, self.now)
                if again_s is not None:
                    shape = self.callers.observations[action.request_id].asked.shape
                    self.later(again_s, lambda _: self._ask(shape))
            case QuarantineModel() | GiveUpPlacement() | DeclineMove() | StartEnded():
                pass
            case KeepWeights():
                size = next(one.shape.weight_bytes for one in self._box.models if one.name == action.model)
                self.report(WeightsKept(node_id=action.node_id, model=action.model, kept_bytes=size))
            case ReleaseWeights():
                pass
            case _:
                if isinstance(action, SubmitRequest):
                    self.callers.submitted(action)
                self.later(self.now, partial(self._command, action))

    def _command(self, command: NodeCommand, now: float) -> None:
        """Deliver a command; one to a worker that has died meanwhile is lost, as on a broken socket."""
        device = self._devices[command.node_id]
        if device.alive:
            device.command(command, now)

    def _check(self) -> None:
        self._steps += 1
        if self._steps % self._check_counts_every or not isinstance(self.host, HostMind):
            return
        if self._steps % self._check_every:
            host_invariants.check_counts(self.host)
            return
        host_invariants.check(self.host)
        for device in self._devices.values():
            if device.alive:
                node_invariants.check(device.mind)

    def _arrive(self, one: SimulatedRequest, now: float) -> None:
        patience_s = self._misfortune.leaves_after_s()
        if patience_s is not None:
            self.later(now + patience_s, lambda _: self._leave(one.shape.id))
        self._tell(RequestArrived(request=one.shape))

    def _hear(self, event: HostEvent, now: float) -> None:  # noqa: ARG002 - as all that happens
        self._tell(event)

    def _ask(self, shape: RequestShape) -> None:
        if not self.callers.observations[shape.id].answered:
            self._tell(RequestArrived(request=shape))

    def _leave(self, request_id: RequestId) -> None:
        if self.callers.leave(request_id):
            self._tell(RequestCancelled(request_id=request_id))

    def _tick(self, now: float) -> None:
        self._tell(ClockTicked())
        for device in self._devices.values():
            self.meter.holds(*device.kv_bytes(), self._tick_s)
        self.later(now + self._tick_s, self._tick)

    def _start_worker(self, spec: NodeSpec, now: float) -> None:
        device = Device(self._minds.node(spec), self._profiles, self._physics, self._noise, self._misfortune, self)
        self._devices[spec.id] = device
        death_s = self._misfortune.next_death_s(now)
        if death_s is not None:
            self.later(death_s, lambda _: self._kill(device))
        self._tell(NodeUp(node_id=spec.id, memory_bytes=spec.memory_bytes))

    def _kill(self, device: Device) -> None:
        spec = device.mind.spec
        self.counts["deaths"] += 1
        self._tell(NodeDown(node_id=spec.id, suspect=device.die(self.now), because="killed by signal 9"))
        self.later(self.now + self._misfortune.faults.restart_s, partial(self._start_worker, spec))
