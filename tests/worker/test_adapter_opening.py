"""A worker whose adapter lies on a disk that hangs: nobody else waits for it, and who waits may leave."""

import asyncio
import json
import os
from pathlib import Path

import msgspec
from box import load_frame, running_box, start_frame, submit_frame
from drive import Driver, alone
from goldens.adapters import adapter_config, seeded_adapter

from llmhostd.checkpoints.adapter import linear_names
from llmhostd.domain.commands import CancelRequest, RecallRequest
from llmhostd.domain.ids import NodeId, RequestId
from llmhostd.domain.model import AdapterSlots, ComputePrecision, KvPrecision
from llmhostd.domain.reports import RequestFailed, RequestReturned
from llmhostd.domain.request import Sampling
from llmhostd.engines.discovery import find_engine
from llmhostd.engines.frames import AdapterFile
from llmhostd.engines.interface import LoadOptions
from llmhostd.engines.runner import Runner
from llmhostd.loader.adapter import CONFIG_FILE, open_adapter
from llmhostd.loader.safetensors import open_checkpoint

CORES = tuple(sorted(os.sched_getaffinity(0)))[:1]
START = start_frame("openvino", CORES)
ROOM = AdapterSlots(slots=1, rank=8, modules=linear_names())
GREEDY = Sampling(max_tokens=30, temperature=0.0, ignore_eos=True)
PROMPT = list(range(3, 60))


def test_who_waits_for_a_slow_disk_keeps_nobody_waiting(tiny_models_dir: Path, tmp_path: Path) -> None:
    base = tiny_models_dir / "tiny-llama"
    path = seeded_adapter(tmp_path / "a", json.loads((base / "config.json").read_text()), 1, config=adapter_config())
    shape = msgspec.structs.replace(open_checkpoint(base).shape(ComputePrecision.F32, KvPrecision.F32), adapters=ROOM)
    weights = open_adapter(path, shape.architecture)
    runner = Runner(
        find_engine("openvino")(START.spec).load(
            base, LoadOptions(compute=ComputePrecision.F32, kv=KvPrecision.F32, threads=1, adapters=ROOM)
        )
    )
    runner.resize(30)
    plain, driver = alone(runner, PROMPT, GREEDY), Driver(runner)
    driver.submit("own", PROMPT, GREEDY, adapter=weights)
    driver.finish()
    own = driver.outputs[RequestId("own")]
    assert own != plain

    # Whoever opens the configuration waits until somebody writes it.
    config = (path / CONFIG_FILE).read_text()
    (path / CONFIG_FILE).unlink()
    os.mkfifo(path / CONFIG_FILE)

    def with_adapter(name: str, identity: str = weights.identity):
        frame = submit_frame(name, "m", PROMPT, GREEDY)
        request = msgspec.structs.replace(frame.command.request, adapter=identity)
        command = msgspec.structs.replace(frame.command, request=request)
        return msgspec.structs.replace(frame, command=command, adapter=AdapterFile(identity=identity, path=str(path)))

    async def scenario() -> None:
        async with running_box(START) as box:
            node = NodeId("cpu0")
            box.supervisor.send(load_frame("m", base, shape))
            for name in ("moves", "leaves", "stays"):
                box.supervisor.send(with_adapter(name))
            assert await box.answer(submit_frame("other", "m", PROMPT, GREEDY)) == plain
            box.supervisor.send(RecallRequest(node_id=node, request_id=RequestId("moves"), because="elsewhere"))
            box.supervisor.send(CancelRequest(node_id=node, request_id=RequestId("leaves"), because="gone"))
            assert (await box.next(RequestReturned)).request_id == "moves"
            await asyncio.to_thread((path / CONFIG_FILE).write_text, config)
            await box.until(lambda: "stays" in box.finished)
            assert box.streams[RequestId("stays")] == own
            assert {"moves", "leaves"}.isdisjoint(box.streams)
            # What lies there is not what was added under this identity.
            (path / CONFIG_FILE).unlink()
            (path / CONFIG_FILE).write_text(config)
            box.supervisor.send(with_adapter("other identity", "0" * 32))
            failed = await box.next(RequestFailed)
            assert (failed.request_id, "its files changed" in failed.error) == ("other identity", True)
            assert await box.answer(with_adapter("again")) == own

    asyncio.run(scenario())
