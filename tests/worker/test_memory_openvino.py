"""Memory that a node gives back is the system's again: a real worker, the real engine, and what the kernel says."""

import asyncio
from pathlib import Path

from box import NODE, Box, load_frame, running_box, start_frame, submit_frame
from process_use import process_use

from llmhostd.demo.noise import make_checkpoint, noise_architecture
from llmhostd.domain.commands import RestInstance, UnloadInstance
from llmhostd.domain.ids import InstanceId, RequestId
from llmhostd.domain.model import ComputePrecision, KvPrecision, ModelState, WeightFormat
from llmhostd.domain.reports import InstanceReported
from llmhostd.domain.request import Sampling
from llmhostd.loader.safetensors import open_checkpoint

MB = 1_000_000
LONG = Sampling(max_tokens=40, temperature=0.0, ignore_eos=True)
ONE = InstanceId("m")


def pss(box: Box) -> int:
    return process_use([box.supervisor.pid]).pss_bytes


def test_what_pools_and_weights_give_back_is_the_systems_again(tmp_path: Path) -> None:
    architecture = noise_architecture("llama", layers=4, vocab=4000)
    checkpoint = make_checkpoint(tmp_path / "m", architecture, weights=WeightFormat.BF16)
    shape = open_checkpoint(checkpoint).shape(ComputePrecision.F32, KvPrecision.F32)
    requests = [
        submit_frame(f"r{place}", "m", [3 + place] * 1800, LONG)
        for place in range(28 * MB // shape.kv_bytes_per_token // 1800)
    ]

    async def scenario() -> None:
        async with running_box(start_frame("openvino")) as box:
            box.supervisor.send(load_frame("m", checkpoint, shape))
            await box.reached("m", ModelState.WARM)
            warm = pss(box)
            for frame in requests:
                box.supervisor.send(frame)
            everyone = {frame.command.request.id for frame in requests}
            await box.until(lambda: everyone <= box.finished)
            grown = max(one.kv_bytes for one in box.all(InstanceReported))
            assert grown > 18 * MB
            await box.until(lambda: box.all(InstanceReported)[-1].kv_bytes < grown / 2)
            shrunk, small = pss(box), box.all(InstanceReported)[-1]
            assert small.held_bytes > 90 * MB
            # The pages that requests wrote are gone with the tail of the pool.
            assert shrunk - warm < small.held_bytes * 1.3 + small.kv_bytes + 25 * MB

            before = len(box.all(InstanceReported))
            box.supervisor.send(RestInstance(node_id=NODE, instance_id=ONE, because="others need it"))
            await box.until(lambda: box.all(InstanceReported)[-1].state is ModelState.WARM)
            emptied = box.all(InstanceReported)[before]
            assert (emptied.state, emptied.held_bytes, emptied.kv_bytes) == (ModelState.LOADING, 0, 0)
            rested = pss(box)
            assert shrunk - rested > 0.8 * small.held_bytes

            answer = submit_frame("again", "m", [3] * 40, LONG)
            assert len(await box.answer(answer)) == LONG.max_tokens
            full = pss(box)
            assert full - rested > 0.8 * small.held_bytes
            box.supervisor.send(UnloadInstance(node_id=NODE, instance_id=ONE, because="no longer wanted"))
            await box.reached("m", ModelState.COLD)
            assert full - pss(box) > 0.8 * small.held_bytes
            assert RequestId("again") in box.finished

    asyncio.run(scenario())
