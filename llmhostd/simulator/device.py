"""What does a node do when its mind says so, if everything takes the time that a profile says?

Stands where worker, runner and engine stand in a real box: performs the actions of one node mind and reports upwards
what a worker reports.
"""

from collections.abc import Callable, Mapping
from math import exp
from typing import Any, Protocol

import msgspec

from llmhostd.domain import node_events as does
from llmhostd.domain.commands import LoadInstance, NodeCommand, StageRequest, SubmitRequest
from llmhostd.domain.ids import HardwareKey, InstanceId, RequestId, ShapeKey
from llmhostd.domain.model import ModelState
from llmhostd.domain.node_events import NodeAction, NodeEvent
from llmhostd.domain.profile import Profile
from llmhostd.domain.reports import (
    InstanceReported,
    IterationReported,
    LoadFailed,
    NodeReport,
    ProfileMeasured,
    RequestFailed,
    RequestReturned,
    RestCalledOff,
)
from llmhostd.domain.words import Word
from llmhostd.node.core import NodeMind
from llmhostd.simulator.chance import Chance
from llmhostd.simulator.faults import Misfortune
from llmhostd.simulator.meter import Meter
from llmhostd.simulator.runner import CountingRunner


class Physics(Word):
    """How the simulated machine differs from its profile, and what no profile says."""

    noise: float = 0.0
    """Standard deviation of the logarithm of an iteration's time."""
    loading_slowdown: float = 2.0
    """Iterations take this many times longer while an instance loads on the same cores."""
    kv_grow_s: float = 0.001
    """Growing a KV pool takes this, and what the next two settings add."""
    kv_copy_s_per_byte: float = 0.0
    """For every byte that the pool had."""
    kv_allocate_s_per_byte: float = 0.0
    """For every byte that the pool gets."""
    kv_beside: bool = False
    """Other instances compute while a pool is resized (SLINFER §VII-C). False: the device is held, as by our engines,
    which take no time for it."""
    kv_shrink_s: float = 0.05
    """Shrinking takes this, and what the next setting adds."""
    kv_shrink_s_per_byte: float = 0.0
    """For every byte that remains."""
    kv_reserved_bytes: dict[tuple[ShapeKey, HardwareKey], int] = msgspec.field(default_factory=dict)
    """KV memory that an instance holds from its load on, whatever its pool has; a pair that is not in it: none."""
    unload_s: float = 0.04
    sample_s: float = 0.2
    samples: int = 20
    """Samples of a profile, and the time of each."""


class Surroundings(Protocol):
    """What a node needs of the world around it."""

    meter: Meter

    def later(self, at_s: float, what: Callable[[float], None]) -> None:
        """Call back at a time."""
        ...

    def report(self, report: NodeReport) -> None:
        """Tell the host."""
        ...

    def decided(self, action: NodeAction) -> None:
        """Take note of a decision."""
        ...

    def answer_tokens(self, request_id: RequestId) -> int:
        """How long an answer will be."""
        ...


class Device:
    """One simulated worker, from its start to its death."""

    def __init__(
        self,
        mind: NodeMind,
        profiles: Mapping[tuple[ShapeKey, HardwareKey], Profile],
        physics: Physics,
        noise: Chance,
        misfortune: Misfortune,
        world: Surroundings,
    ) -> None:
        self.mind = mind
        self.alive = True
        self._profiles = profiles
        self._physics = physics
        self._noise = noise
        self._misfortune = misfortune
        self._world = world
        self._runners: dict[InstanceId, CountingRunner] = {}
        self._where: dict[RequestId, CountingRunner] = {}
        self._samples: dict[InstanceId, int] = {}
        self._unheard: list[NodeCommand] | None = None
        """What came while a sample runs: a worker reads its mail after it, and its mind does not know of its end. None:
        none runs."""
        self._computing: InstanceId | None = None
        self._loading: InstanceId | None = None
        self._perform: dict[type[NodeAction], Callable[[Any, float], None]] = {
            does.RunIteration: self._run_iteration,
            does.ResizeKv: self._resize_kv,
            does.BeginLoad: self._begin_load,
            does.BeginRest: self._begin_rest,
            does.BeginUnload: self._begin_unload,
            does.AbandonLoad: self._abandon_load,
            does.RunProfileSample: self._run_profile_sample,
            does.ReportProfile: self._report_profile,
            does.CallOffRest: self._call_off_rest,
            does.DropRequest: self._drop_request,
            does.FailRequest: self._fail_request,
            does.ReturnRequest: self._return_request,
        }

    def command(self, command: NodeCommand, now: float) -> None:
        """Take a command of the host."""
        if self._unheard is not None:
            self._unheard.append(command)
            return
        if isinstance(command, LoadInstance):
            key = (command.shape.key, self.mind.spec.hardware_key)
            runner = CountingRunner(self._profiles[key], command.shape.kv_bytes_per_token, self.mind.spec.block_tokens)
            runner.kv_reserved_bytes = self._physics.kv_reserved_bytes.get(key, 0)
            self._runners[command.instance_id] = runner
            self._world.meter.came(self.mind.spec.id, command.instance_id, now)
        elif isinstance(command, SubmitRequest | StageRequest) and command.instance_id in self._runners:
            self._take_in(command, self._runners[command.instance_id])
        self._tell(command, now)
        self._go_on(now)

    def _take_in(self, command: SubmitRequest | StageRequest, runner: CountingRunner) -> None:
        """Bring tokens; a later round for what was given back meanwhile comes to nothing."""
        request = command.request
        if request.id in self._where:
            runner.bring(request)
        elif isinstance(command, SubmitRequest) or not command.known_tokens:
            runner.submit(request, self._world.answer_tokens(request.id))
            self._where[request.id] = runner

    def die(self, now: float) -> InstanceId | None:
        """Be gone; nothing that was under way ends. Says who was computing or loading."""
        self.alive = False
        for instance_id in self._runners:
            self._world.meter.went(self.mind.spec.id, instance_id, now)
        return self._computing or self._loading

    def kv_bytes(self) -> tuple[int, int]:
        """What all KV pools hold, and what of it holds tokens."""
        runners = self._runners.values()
        return sum(one.pool_bytes for one in runners), sum(one.kv_used_bytes for one in runners)

    def _tell(self, event: NodeEvent, now: float) -> bool:
        actions = self.mind.step(event, now)
        for action in actions:
            self._world.decided(action)
            self._perform[type(action)](action, now)
        return bool(actions)

    def _go_on(self, now: float) -> None:
        """Ask what to do until the device computes or there is nothing to do."""
        while self._computing is None and self._tell(does.DeviceIdle(), now):
            pass

    def _later(self, at_s: float, what: Callable[[float], None]) -> None:
        """Call back unless the worker has died by then, and let the mind go on."""

        def wake(now: float) -> None:
            if self.alive:
                what(now)
                self._go_on(now)

        self._world.later(at_s, wake)

    def _run_iteration(self, action: does.RunIteration, now: float) -> None:
        runner = self._runners[action.instance_id]
        duration_s = runner.seconds(action.rows) * exp(self._physics.noise * self._noise.normal())
        duration_s *= self._misfortune.slowdown()
        if self._loading:
            duration_s *= self._physics.loading_slowdown
        self._computing = action.instance_id

        def ended(then: float) -> None:
            self._computing = None
            self._iterated(action, runner, now, then)

        self._later(now + duration_s, ended)

    def _iterated(self, action: does.RunIteration, runner: CountingRunner, started_s: float, now: float) -> None:
        packed = not runner.resident
        rows = runner.run(action.rows)
        self._world.meter.decoded(self.mind.spec.id, runner.decoded, now)
        finished = [row.request_id for row in rows if row.finish]
        for request_id in finished:
            del self._where[request_id]
        self._world.report(
            IterationReported(
                node_id=self.mind.spec.id,
                instance_id=action.instance_id,
                started_s=started_s,
                duration_s=now - started_s,
                predicted_s=action.predicted_s,
                rows=rows,
                because=action.because,
            )
        )
        if packed or finished:
            self._report(action.instance_id, ModelState.RESIDENT)
        done = tuple(
            does.RowDone(
                request_id=row.request_id, computed_tokens=plan.tokens, new_tokens=len(row.tokens), finish=row.finish
            )
            for row, plan in zip(rows, action.rows, strict=True)
        )
        self._tell(does.IterationDone(instance_id=action.instance_id, duration_s=now - started_s, rows=done), now)

    def _resize_kv(self, action: does.ResizeKv, now: float) -> None:
        runner = self._runners[action.instance_id]
        takes_s = self._resizing_s(runner, action.kv_blocks)
        holds_device = not self._physics.kv_beside
        if holds_device:
            self._computing = action.instance_id
        self._world.meter.resized(takes_s)

        def ended(then: float) -> None:
            if holds_device:
                self._computing = None
            runner.kv_blocks = action.kv_blocks
            self._report(action.instance_id, ModelState.RESIDENT if runner.resident else ModelState.WARM)
            self._tell(does.KvResized(instance_id=action.instance_id, kv_blocks=action.kv_blocks, took_s=takes_s), then)

        self._later(now + takes_s, ended)

    def _resizing_s(self, runner: CountingRunner, kv_blocks: int) -> float:
        physics, before, after = self._physics, runner.kv_blocks * runner.block_bytes, kv_blocks * runner.block_bytes
        if after > before:
            return physics.kv_grow_s + before * physics.kv_copy_s_per_byte + after * physics.kv_allocate_s_per_byte
        return physics.kv_shrink_s + after * physics.kv_shrink_s_per_byte

    def _begin_load(self, action: does.BeginLoad, now: float) -> None:
        runner, fails = self._runners[action.instance_id], self._misfortune.load_fails()
        self._loading = action.instance_id
        ended = self._load_failed if fails else self._loaded
        self._later(now + runner.profile.load_s, lambda then: ended(action.instance_id, then))

    def _begin_rest(self, action: does.BeginRest, now: float) -> None:
        def ended(then: float) -> None:
            runner = self._runners[action.instance_id]
            runner.rest()
            self._report(action.instance_id, ModelState.LOADING)
            self._tell(does.InstanceEmptied(instance_id=action.instance_id), then)

        self._later(now + self._physics.unload_s, ended)

    def _loaded(self, instance_id: InstanceId, now: float) -> None:
        runner = self._runners[instance_id]
        self._loading = None
        self._report(instance_id, ModelState.WARM)
        loaded = does.InstanceLoaded(
            instance_id=instance_id,
            held_bytes=runner.held_bytes,
            kv_bytes_per_block=runner.block_bytes,
            block_tokens=runner.block_tokens,
        )
        self._tell(loaded, now)

    def _load_failed(self, instance_id: InstanceId, now: float) -> None:
        self._loading = None
        self._give_up(instance_id, "model.safetensors: tensor lm_head.weight is missing", now)

    def _abandon_load(self, action: does.AbandonLoad, now: float) -> None:
        self._give_up(action.instance_id, action.because, now, lacks_memory=True)

    def _give_up(self, instance_id: InstanceId, error: str, now: float, *, lacks_memory: bool = False) -> None:
        self._forget_runner(instance_id, now)
        node_id = self.mind.spec.id
        self._world.report(LoadFailed(node_id=node_id, instance_id=instance_id, error=error, lacks_memory=lacks_memory))
        self._tell(does.InstanceGone(instance_id=instance_id), now)

    def _begin_unload(self, action: does.BeginUnload, now: float) -> None:
        def ended(then: float) -> None:
            self._report(action.instance_id, ModelState.COLD)
            self._forget_runner(action.instance_id, then)
            self._tell(does.InstanceGone(instance_id=action.instance_id), then)

        self._later(now + self._physics.unload_s, ended)

    def _run_profile_sample(self, action: does.RunProfileSample, now: float) -> None:
        self._computing, self._unheard = action.instance_id, []

        def ended(then: float) -> None:
            came, self._computing, self._unheard = self._unheard or (), None, None
            runner = self._runners[action.instance_id]
            done = self._samples[action.instance_id] = self._samples.get(action.instance_id, 0) + 1
            if not runner.resident:
                runner.resident = True
                self._report(action.instance_id, ModelState.RESIDENT)
            if done >= self._physics.samples:
                del self._samples[action.instance_id]
                self._measured(action.instance_id, runner.profile, then)
            for command in came:
                self.command(command, then)

        self._later(now + self._physics.sample_s, ended)

    def _report_profile(self, action: does.ReportProfile, now: float) -> None:  # noqa: ARG002 - as the others
        self._world.report(
            ProfileMeasured(node_id=self.mind.spec.id, instance_id=action.instance_id, profile=action.profile)
        )

    def _call_off_rest(self, action: does.CallOffRest, now: float) -> None:  # noqa: ARG002 - as the others
        because = action.because
        self._world.report(RestCalledOff(node_id=self.mind.spec.id, instance_id=action.instance_id, because=because))

    def _measured(self, instance_id: InstanceId, profile: Profile, now: float) -> None:
        measured = ProfileMeasured(node_id=self.mind.spec.id, instance_id=instance_id, profile=profile)
        self._world.report(measured)
        self._tell(does.ProfileUpdated(instance_id=instance_id, profile=profile), now)

    def _drop_request(self, action: does.DropRequest, now: float) -> None:  # noqa: ARG002 - as the others
        self._forget(action.request_id)

    def _fail_request(self, action: does.FailRequest, now: float) -> None:  # noqa: ARG002 - as the others
        if self._forget(action.request_id):
            failed = RequestFailed(node_id=self.mind.spec.id, request_id=action.request_id, error=action.because)
            self._world.report(failed)

    def _return_request(self, action: does.ReturnRequest, now: float) -> None:  # noqa: ARG002 - as the others
        if self._forget(action.request_id):
            returned = RequestReturned(
                node_id=self.mind.spec.id, request_id=action.request_id, because=action.because, staged=action.staged
            )
            self._world.report(returned)

    def _forget(self, request_id: RequestId) -> bool:
        """Whether there was anything to forget: of those whose instance is gone, the host has heard already."""
        runner = self._where.pop(request_id, None)
        if runner is not None:
            runner.drop(request_id)
        return runner is not None

    def _forget_runner(self, instance_id: InstanceId, now: float) -> None:
        runner = self._runners.pop(instance_id)
        self._world.meter.went(self.mind.spec.id, instance_id, now)
        self._where = {key: each for key, each in self._where.items() if each is not runner}

    def _report(self, instance_id: InstanceId, state: ModelState) -> None:
        """Report state and size, as they are now; nothing is held of what is gone."""
        runner, gone = self._runners[instance_id], state is ModelState.COLD
        self._world.report(
            InstanceReported(
                node_id=self.mind.spec.id,
                instance_id=instance_id,
                state=state,
                held_bytes=0 if gone else runner.held_bytes,
                kv_bytes=0 if gone else runner.kv_blocks * runner.block_bytes,
                kv_used_bytes=0 if gone else runner.kv_used_bytes,
            )
        )
