"""A worker whose models' files are written to while they are warm, compute, or load."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from box import NODE, Box, load_frame, running_box, start_frame, submit_frame
from drive import alone

from llmhostd.domain.commands import UnloadInstance
from llmhostd.domain.ids import InstanceId
from llmhostd.domain.model import ComputePrecision, KvPrecision, ModelState
from llmhostd.domain.reports import InstanceReported, LoadFailed, NodeMemoryReported
from llmhostd.domain.request import Sampling
from llmhostd.engines.discovery import find_engine
from llmhostd.engines.interface import LoadOptions
from llmhostd.engines.runner import Runner
from llmhostd.loader.safetensors import open_checkpoint

pytestmark = pytest.mark.usefixtures("leases")
START = start_frame("openvino", tuple(sorted(os.sched_getaffinity(0)))[:1])
GREEDY = Sampling(max_tokens=30, temperature=0.0, ignore_eos=True)
PROMPT = list(range(3, 60))


def test_a_copy_is_told_of_counted_and_given_back(tiny_models_dir: Path, tmp_path: Path) -> None:
    runner = Runner(
        find_engine("openvino")(START.spec).load(
            tiny_models_dir / "tiny-llama",
            LoadOptions(compute=ComputePrecision.F32, kv=KvPrecision.F32, threads=1),
        )
    )
    runner.resize(30)
    expected = alone(runner, PROMPT, GREEDY)
    names = ("warm", "computes", "loads")
    paths = {name: shutil.copytree(tiny_models_dir / "tiny-llama", tmp_path / name) for name in names}
    shape = open_checkpoint(paths["warm"]).shape(ComputePrecision.F32, KvPrecision.F32)
    size = (paths["warm"] / "model.safetensors").stat().st_size

    def told(box: Box, name: str) -> list[InstanceReported]:
        return [one for one in box.all(InstanceReported) if one.instance_id == name and "a copy" in one.because]

    def reached(box: Box, name: str, state: ModelState) -> bool:
        return any(one.instance_id == name and one.state is state for one in box.all(InstanceReported))

    def failed(box: Box) -> list[LoadFailed]:
        return box.all(LoadFailed)

    async def cut_short(name: str) -> None:
        await asyncio.to_thread(os.truncate, paths[name] / "model.safetensors", 100)

    async def scenario() -> None:
        async with running_box(START) as box:
            for name in ("warm", "computes"):
                box.supervisor.send(load_frame(name, paths[name], shape))
                await box.reached(name, ModelState.WARM)
            assert await box.answer(submit_frame("first", "computes", PROMPT, GREEDY)) == expected
            for name in ("warm", "computes"):
                before = next(one for one in reversed(box.all(InstanceReported)) if one.instance_id == name)
                await cut_short(name)
                await box.until(lambda name=name: told(box, name))
                assert told(box, name)[0].held_bytes >= before.held_bytes + size
                assert await box.answer(submit_frame(f"then-{name}", name, PROMPT, GREEDY)) == expected
            await box.until(lambda: box.all(NodeMemoryReported)[-1].held_bytes >= 2 * size)
            box.supervisor.send(load_frame("loads", paths["loads"], shape))
            await cut_short("loads")
            await box.until(lambda: failed(box) or reached(box, "loads", ModelState.WARM))
            assert all("model.safetensors" in one.error for one in failed(box))
            for name in names[: 2 if failed(box) else 3]:
                command = UnloadInstance(node_id=NODE, instance_id=InstanceId(name), because="a test is done with it")
                box.supervisor.send(command)
                await box.until(lambda name=name: reached(box, name, ModelState.COLD))
            await box.until(lambda: not box.all(NodeMemoryReported)[-1].held_bytes)

    asyncio.run(scenario())
