"""How is a worker put together? The only constructor."""

import gc
import socket

import msgspec

from llmhostd.devices.probe import memory_total_bytes
from llmhostd.domain.errors import LlmhostdError
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.reports import NodeUp
from llmhostd.engines.crash_note import CrashNote
from llmhostd.engines.discovery import open_engine
from llmhostd.engines.frames import ShutdownFrame, StartFrame, WorkerRefused
from llmhostd.node.core import NodeMind
from llmhostd.worker.adapters import Adapters
from llmhostd.worker.arrivals import Arrivals
from llmhostd.worker.budget import Budget
from llmhostd.worker.executor import Executor
from llmhostd.worker.instances import Instances
from llmhostd.worker.keeper import Keeper
from llmhostd.worker.link import DaemonGoneError, Link
from llmhostd.worker.loads import Builder
from llmhostd.worker.loop import DeviceLoop
from llmhostd.worker.neighbours import Neighbours
from llmhostd.worker.process import bind_to_cores, prefer_memory_of

FAILED = 1
"""Exit status of a worker that ended by a mistake of ours."""
REFUSED = 2
"""Exit status of a worker that said `WorkerRefused`."""


def serve(connection: socket.socket, note: CrashNote) -> int:
    """Be the worker at this end of `connection` until it is told to stop or nobody is there; returns an exit status."""
    link = Link(connection)
    try:
        start = _first_frame(link)
        try:
            loop = compose(start, link, note)
        except LlmhostdError as error:
            link.send(WorkerRefused(error=str(error)))
            return REFUSED
        loop.run()
    except DaemonGoneError:
        pass
    return 0


def compose(start: StartFrame, link: Link, note: CrashNote) -> DeviceLoop:
    """Open the engine on the node's cores and say that the node is up. Raises OperatorError for an unknown engine."""
    spec = start.spec
    bind_to_cores(spec.cores)
    far = prefer_memory_of(spec.numa_domains) if spec.numa_domains else ""
    engine = open_engine(at_its_largest(spec))
    neighbours = Neighbours()
    builder = Builder(engine, note, neighbours, link.ring)
    mind = NodeMind(
        spec,
        scheduling=start.scheduling,
        kv_demand=start.kv_demand,
        watermark=start.watermark,
        correction=start.correction,
    )
    budget = Budget(spec, start.machine_memory, link)
    adapters = Adapters(link.ring)
    arrivals = Arrivals(spec.id, start.fetch, link, streams=engine.facts().arriving)
    instances = Instances(spec, builder, link, budget, adapters, arrivals)
    keeper = Keeper(spec.id, link.ring, lambda: mind.lifecycle.background is not None)
    executor = Executor(spec, instances, link, note, neighbours)
    loop = DeviceLoop(mind, link, builder, keeper, adapters, instances, executor, budget)
    # What exists now lives as long as the process: the collector need not look at it again.
    gc.freeze()
    caveats = (*spec.caveats, *_memory_caveats(far), *engine.facts().caveats)
    link.send(NodeUp(node_id=spec.id, memory_bytes=spec.memory_bytes, caveats=caveats))
    return loop


def at_its_largest(spec: NodeSpec) -> NodeSpec:
    """The node with the most memory it may ever have: an engine reserves addresses for its KV once, and they are free.

    A worker that begins while a control group leaves nothing must be able to use what it leaves later.
    """
    if not spec.memory_pools:
        return spec
    return msgspec.structs.replace(spec, memory_bytes=max(spec.memory_bytes, memory_total_bytes()))


def _memory_caveats(far: str) -> tuple[str, ...]:
    return (f"its memory may lie in another NUMA domain than its cores: set_mempolicy: {far}",) if far else ()


def _first_frame(link: Link) -> StartFrame:
    while not (frames := link.receive(wait=True)):
        pass
    if isinstance(frames[-1], ShutdownFrame):
        raise DaemonGoneError  # nobody wants it any more, before it began
    if len(frames) != 1 or not isinstance(frames[0], StartFrame):
        raise RuntimeError("a worker is told first which node it is, and then waits until it is up")
    return frames[0]
