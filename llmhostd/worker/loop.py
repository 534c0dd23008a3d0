"""What does a worker do, over and over? Hear what came, ask the mind, compute, tell what came out."""

import time
from typing import Protocol

from llmhostd.domain.commands import CancelRequest, RecallRequest, ReleaseWeights, UnloadInstance
from llmhostd.domain.node_events import DeviceIdle, NodeAction, NodeEvent
from llmhostd.domain.reports import NodeMemoryReported
from llmhostd.engines.frames import DownFrame, KeepFrame, LoadFrame, ShutdownFrame, StageFrame, StartFrame, SubmitFrame
from llmhostd.worker.adapters import Adapters
from llmhostd.worker.budget import Budget
from llmhostd.worker.executor import Executor
from llmhostd.worker.instances import Instances
from llmhostd.worker.keeper import Keeper
from llmhostd.worker.link import Link
from llmhostd.worker.loads import Builder

_TELL_MEMORY_EVERY_S = 0.25
"""A busy node says this often whose its memory is."""


class Mind(Protocol):
    """`node.core.NodeMind`."""

    def step(self, event: NodeEvent, now: float) -> list[NodeAction]:
        """Hear, and decide."""
        ...

    def memory_report(self) -> NodeMemoryReported:
        """Say whose the node's bytes are."""
        ...


class DeviceLoop:
    """The device's thread. Between two iterations it looks at the socket once and never waits while there is work."""

    def __init__(
        self,
        mind: Mind,
        link: Link,
        builder: Builder,
        keeper: Keeper,
        adapters: Adapters,
        instances: Instances,
        executor: Executor,
        budget: Budget,
    ) -> None:
        self._mind = mind
        self._budget = budget
        self._link = link
        self._builder = builder
        self._keeper = keeper
        self._adapters = adapters
        self._instances = instances
        self._executor = executor
        self._stopping = False
        self._told = mind.memory_report()
        self._told_s = 0.0

    def run(self) -> None:
        """Go on until a `ShutdownFrame`. Raises DaemonGoneError when the daemon went without one."""
        idle = False
        while not self._stopping:
            for frame in self._link.receive(wait=idle, wait_s=self._budget.look_every_s):
                self._hear(frame)
            for kept in self._keeper.reports():
                self._link.send(kept)
            for outcome in self._builder.outcomes():
                self._tell(*self._instances.conclude(outcome))
            self._tell(*self._instances.arrived())
            self._tell(*self._instances.copied())
            for submitted, error in self._adapters.opened():
                self._submit(submitted, error)
            self._tell(*self._budget.look(time.monotonic()))
            idle = not self._tell(DeviceIdle())
            self._tell_memory(idle=idle)

    def _tell(self, *events: NodeEvent) -> bool:
        """Tell the mind, do what it decides, tell it what came of that, and so on; whether it decided anything."""
        decided = False
        pending = list(events)
        while pending:
            for action in self._mind.step(pending.pop(0), time.monotonic()):
                pending += self._executor.perform(action)
                decided = True
        return decided

    def _tell_memory(self, *, idle: bool) -> None:
        """Tell the daemon whose bytes are whose, if that changed: now and then, and before there is nothing to do."""
        now = time.monotonic()
        if not idle and now - self._told_s < _TELL_MEMORY_EVERY_S:
            return
        self._told_s, report = now, self._mind.memory_report()
        if report != self._told:
            self._told = report
            self._link.send(report)

    def _hear(self, frame: DownFrame) -> None:
        match frame:
            case LoadFrame():
                self._tell(self._instances.expect(frame))
            case SubmitFrame() | StageFrame() if self._instances.waits_for_adapter(frame):
                pass
            case SubmitFrame() | StageFrame():
                self._submit(frame)
            case CancelRequest() | RecallRequest() if self._instances.withdrawn(frame):
                pass
            case KeepFrame():
                self._keeper.keep(frame)
            case ReleaseWeights():
                self._keeper.release(frame.model)
            case UnloadInstance():
                self._instances.call_off(frame.instance_id)
                self._tell(frame)
            case ShutdownFrame():
                self._stopping = True
            case StartFrame():
                raise RuntimeError("a worker is started once")
            case _:
                self._tell(frame)

    def _submit(self, frame: SubmitFrame | StageFrame, error: str = "") -> None:
        """Let the mind hear of a request; of one that cannot be computed, the daemon alone."""
        if error:
            self._tell(*self._instances.without_adapter(frame, error))
            return
        found = self._instances.submit(frame)
        self._tell(frame.command, *found)
