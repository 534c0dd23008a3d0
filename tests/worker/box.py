"""One supervised worker, and a host with very little mind: it submits, listens, and moves requests as their tokens."""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from reference_engine import SHAPE

from llmhostd.compute.estimator import CorrectionPolicy
from llmhostd.compute.iteration_plan import SchedulingPolicy
from llmhostd.domain.commands import LoadInstance, SubmitRequest
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import HardwareKey, InstanceId, ModelName, NodeId, RequestId
from llmhostd.domain.model import ModelShape, ModelState, Slo
from llmhostd.domain.profile import DecodeSample, PrefillSample, Profile
from llmhostd.domain.reports import InstanceReported, IterationReported, NodeDown, NodeUp
from llmhostd.domain.request import RequestShape, Sampling, Tier
from llmhostd.engines.frames import LoadFrame, StartFrame, SubmitFrame
from llmhostd.engines.supervisor import SupervisorPolicy, WorkerSupervisor
from llmhostd.memory.kv_demand import KvDemandPolicy
from llmhostd.memory.kv_watermark import WatermarkPolicy

NODE = NodeId("cpu0")
T = TypeVar("T")


def profile_of(shape: ModelShape) -> Profile:
    """Anything positive: predictions decide when things run, never what comes out."""
    return Profile(
        shape_key=shape.key,
        hardware_key=HardwareKey("here"),
        prefill=tuple(
            PrefillSample(chunk_tokens=c, past_tokens=p, seconds=c / 1e4) for c in (8, 256) for p in (0, 256)
        ),
        decode=tuple(DecodeSample(batch=b, context_tokens=c, seconds=b / 1e3) for b in (1, 32) for c in (64, 256)),
        load_s=0.1,
        first_run_s=0.0,
        resident_bytes=1 << 20,
        warm_bytes=1 << 16,
    )


def start_frame(engine: str = "reference", cores: tuple[int, ...] | None = None, memory: int = 1 << 30) -> StartFrame:
    cores = cores or tuple(sorted(os.sched_getaffinity(0)))
    spec = NodeSpec(id=NODE, engine=engine, hardware_key=HardwareKey("here"), cores=cores, memory_bytes=memory)
    return StartFrame(
        spec=spec,
        scheduling=SchedulingPolicy(),
        kv_demand=KvDemandPolicy(),
        watermark=WatermarkPolicy(),
        correction=CorrectionPolicy(),
    )


def load_frame(name: str, checkpoint: Path, shape: ModelShape = SHAPE, *, measured: bool = True) -> LoadFrame:
    command = LoadInstance(
        node_id=NODE,
        instance_id=InstanceId(name),
        model=ModelName(name),
        shape=shape,
        target=ModelState.WARM,
        profile=profile_of(shape) if measured else None,
        because="a test wants it",
    )
    return LoadFrame(command=command, checkpoint=str(checkpoint))


def submit_frame(
    name: str, instance: str, prompt: list[int], sampling: Sampling, streamed: tuple[int, ...] = ()
) -> SubmitFrame:
    request = RequestShape(
        id=RequestId(name),
        model=ModelName(instance),
        prompt_tokens=len(prompt),
        max_tokens=sampling.max_tokens,
        tier=Tier.LATENCY_SENSITIVE,
        slo=Slo(ttft_s=2.0, tpot_s=0.2),
        arrived_s=time.monotonic(),
        tokens_out=len(streamed),
    )
    command = SubmitRequest(node_id=NODE, instance_id=InstanceId(instance), request=request, because="a test asks")
    return SubmitFrame(command=command, context=(*prompt, *streamed), sampling=sampling)


class Box:
    def __init__(self, start: StartFrame) -> None:
        self.heard: list[Any] = []
        self.stirred = asyncio.Event()
        self.streams: dict[RequestId, list[int]] = {}
        self.finished: set[RequestId] = set()
        policy = SupervisorPolicy(first_backoff_s=0.01)
        self.supervisor = WorkerSupervisor(start, self.hear, policy)

    def hear(self, report: Any) -> None:
        self.heard.append(report)
        if isinstance(report, IterationReported):
            for row in report.rows:
                self.streams.setdefault(row.request_id, []).extend(row.tokens)
                if row.finish is not None:
                    self.finished.add(row.request_id)
        self.stirred.set()

    def all(self, kind: type[T]) -> list[T]:
        return [report for report in self.heard if isinstance(report, kind)]

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                self.stirred.clear()
                await self.stirred.wait()

    async def next(self, kind: type[T], count: int = 1) -> T:
        """The `count`-th report of this kind since the beginning."""
        await self.until(lambda: len(self.all(kind)) >= count)
        return self.all(kind)[count - 1]

    async def reached(self, instance: str, state: ModelState) -> None:
        await self.until(
            lambda: any(one.instance_id == instance and one.state is state for one in self.all(InstanceReported))
        )

    async def answer(self, frame: SubmitFrame) -> list[int]:
        """Submit, and wait for the whole answer."""
        self.supervisor.send(frame)
        await self.until(lambda: frame.command.request.id in self.finished)
        return self.streams[frame.command.request.id]


@asynccontextmanager
async def running_box(start: StartFrame | None = None):
    box = Box(start or start_frame())
    task = asyncio.create_task(box.supervisor.run())
    try:
        await box.next(NodeUp)
        yield box
    finally:
        await box.supervisor.stop()
        await task
    assert isinstance(box.heard[-1], NodeDown)
    assert box.heard[-1].because == "it was told to stop"
