"""A worker with the real engine: measured, shared, killed, and exact all the same."""

import asyncio
import os
import signal
from pathlib import Path

import msgspec
from box import Box, load_frame, running_box, start_frame, submit_frame
from drive import alone

from llmhostd.domain.hardware import MemoryClaim, MemoryPool
from llmhostd.domain.ids import RequestId
from llmhostd.domain.model import ComputePrecision, KvPrecision, ModelShape
from llmhostd.domain.reports import IterationReported, NodeDown, NodeMemoryChanged, NodeUp, ProfileMeasured
from llmhostd.domain.request import Sampling
from llmhostd.engines.discovery import find_engine
from llmhostd.engines.interface import LoadOptions
from llmhostd.engines.runner import Runner
from llmhostd.loader.safetensors import open_checkpoint

CORES = tuple(sorted(os.sched_getaffinity(0)))[:1]
START = start_frame("openvino", CORES)
MODELS = ("tiny-llama", "tiny-qwen3")
GREEDY = Sampling(max_tokens=60, temperature=0.0, ignore_eos=True)


def shape_of(checkpoint: Path) -> ModelShape:
    return open_checkpoint(checkpoint).shape(ComputePrecision.F32, KvPrecision.F32)


def undisturbed(checkpoint: Path, prompts: dict[RequestId, list[int]]) -> dict[RequestId, list[int]]:
    engine = find_engine("openvino")(START.spec)
    options = LoadOptions(compute=ComputePrecision.F32, kv=KvPrecision.F32, threads=1)
    runner = Runner(engine.load(checkpoint, options))
    runner.resize(30)
    return {request_id: alone(runner, prompt, GREEDY) for request_id, prompt in prompts.items()}


def test_two_models_measured_and_killed_stream_what_they_would_have(tiny_models_dir: Path) -> None:
    prompts = {name: {RequestId(f"{name}-{n}"): list(range(3 + n, 60)) for n in range(2)} for name in MODELS}
    expected: dict[RequestId, list[int]] = {}
    for name in MODELS:
        expected |= undisturbed(tiny_models_dir / name, prompts[name])

    def submit_all(box: Box) -> None:
        for name in MODELS:
            box.supervisor.send(
                load_frame(name, tiny_models_dir / name, shape_of(tiny_models_dir / name), measured=False)
            )
            for request_id, prompt in prompts[name].items():
                if request_id not in box.finished:
                    streamed = tuple(box.streams.get(request_id, ()))
                    box.supervisor.send(submit_frame(request_id, name, prompt, GREEDY, streamed))

    async def scenario() -> None:
        async with running_box(START) as box:
            submit_all(box)
            for life in (1, 2):
                before = len(box.all(IterationReported))
                await box.until(lambda: len(box.all(IterationReported)) > before + 10)  # noqa: B023
                os.kill(box.supervisor.pid, signal.SIGKILL)
                await box.next(NodeDown, life)
                await box.next(NodeUp, life + 1)
                submit_all(box)
            await box.until(lambda: box.finished == set(expected))
            assert box.streams == expected
            for measured in box.all(ProfileMeasured):
                assert all(sample.seconds > 0 for sample in (*measured.profile.prefill, *measured.profile.decode))

    asyncio.run(scenario())


def test_a_worker_that_began_without_memory_uses_what_comes(tiny_models_dir: Path) -> None:
    name, prompt = "tiny-llama", list(range(3, 60))
    expected = undisturbed(tiny_models_dir / name, {RequestId("r"): prompt})
    pool = MemoryPool(claims=(MemoryClaim(weight=1),), mine=0)
    spec = msgspec.structs.replace(START.spec, memory_bytes=0, memory_pools=(pool,))

    async def scenario() -> None:
        async with running_box(msgspec.structs.replace(START, spec=spec)) as box:
            assert (await box.next(NodeMemoryChanged)).memory_bytes > 0
            box.supervisor.send(load_frame(name, tiny_models_dir / name, shape_of(tiny_models_dir / name)))
            assert await box.answer(submit_frame("r", name, prompt, GREEDY)) == expected[RequestId("r")]

    asyncio.run(scenario())
