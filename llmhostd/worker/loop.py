"""What does a worker do, over and over? Hear what came, ask the mind, compute, tell what came out."""

import time
from typing import Protocol

from llmhostd.domain.node_events import DeviceIdle, NodeAction, NodeEvent
from llmhostd.engines.frames import DownFrame, LoadFrame, ShutdownFrame, StartFrame, SubmitFrame
from llmhostd.worker.executor import Executor
from llmhostd.worker.instances import Instances
from llmhostd.worker.link import Link
from llmhostd.worker.loads import Builder


class Mind(Protocol):
    """`node.core.NodeMind`."""

    def step(self, event: NodeEvent, now: float) -> list[NodeAction]:
        """Hear, and decide."""
        ...


class DeviceLoop:
    """The device's thread. Between two iterations it looks at the socket once and never waits while there is work."""

    def __init__(self, mind: Mind, link: Link, builder: Builder, instances: Instances, executor: Executor) -> None:
        self._mind = mind
        self._link = link
        self._builder = builder
        self._instances = instances
        self._executor = executor
        self._stopping = False

    def run(self) -> None:
        """Go on until a `ShutdownFrame`. Raises DaemonGoneError when the daemon went without one."""
        idle = False
        while not self._stopping:
            for frame in self._link.receive(wait=idle):
                self._hear(frame)
            for outcome in self._builder.outcomes():
                self._tell(*self._instances.conclude(outcome))
            idle = not self._tell(DeviceIdle())

    def _tell(self, *events: NodeEvent) -> bool:
        """Tell the mind, do what it decides, tell it what came of that, and so on; whether it decided anything."""
        decided = False
        pending = list(events)
        while pending:
            for action in self._mind.step(pending.pop(0), time.monotonic()):
                pending += self._executor.perform(action)
                decided = True
        return decided

    def _hear(self, frame: DownFrame) -> None:
        match frame:
            case LoadFrame():
                self._instances.expect(frame)
                self._tell(frame.command)
            case SubmitFrame():
                found = self._instances.submit(frame)
                self._tell(frame.command, *found)
            case ShutdownFrame():
                self._stopping = True
            case StartFrame():
                raise RuntimeError("a worker is started once")
            case _:
                self._tell(frame)
