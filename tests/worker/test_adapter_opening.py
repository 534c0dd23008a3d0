"""A worker that reads adapters for long: nobody else waits for them, and who waits may leave."""

import asyncio
import json
import os
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
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
from llmhostd.loader.adapter import AdapterWeights, open_adapter
from llmhostd.loader.safetensors import open_checkpoint
from llmhostd.worker.adapters import Adapters

CORES = tuple(sorted(os.sched_getaffinity(0)))[:1]
START = start_frame("openvino", CORES)
ROOM = AdapterSlots(slots=1, rank=8, modules=linear_names())
GREEDY = Sampling(max_tokens=30, temperature=0.0, ignore_eos=True)
PROMPT = list(range(3, 60))
BEFORE = 150
"""Adapters to be read before."""


def test_who_waits_for_adapters_to_be_read_keeps_nobody_waiting(tiny_models_dir: Path, tmp_path: Path) -> None:
    base = tiny_models_dir / "tiny-llama"
    config = json.loads((base / "config.json").read_text())
    path = seeded_adapter(tmp_path / "a", config, 1, config=adapter_config())
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

    # Each of those who name this one wrongly has it read from end to end.
    large = seeded_adapter(tmp_path / "large", config, 2, config=adapter_config(rank=4096))

    def with_adapter(name: str, identity: str = weights.identity, path: Path = path):
        frame = submit_frame(name, "m", PROMPT, GREEDY)
        request = msgspec.structs.replace(frame.command.request, adapter=identity)
        command = msgspec.structs.replace(frame.command, request=request)
        return msgspec.structs.replace(frame, command=command, adapter=AdapterFile(identity=identity, path=str(path)))

    async def scenario() -> None:
        async with running_box(START) as box:
            node = NodeId("cpu0")
            box.supervisor.send(load_frame("m", base, shape))
            assert await box.answer(submit_frame("first", "m", PROMPT, GREEDY)) == plain
            for place in range(BEFORE):
                box.supervisor.send(with_adapter(f"before{place}", f"{place:032}", large))
            for name in ("moves", "leaves", "stays"):
                box.supervisor.send(with_adapter(name))
            assert await box.answer(submit_frame("other", "m", PROMPT, GREEDY)) == plain
            box.supervisor.send(RecallRequest(node_id=node, request_id=RequestId("moves"), because="elsewhere"))
            box.supervisor.send(CancelRequest(node_id=node, request_id=RequestId("leaves"), because="gone"))
            assert (await box.next(RequestReturned)).request_id == "moves"
            assert len(box.all(RequestFailed)) < BEFORE
            await box.until(lambda: "stays" in box.finished)
            assert box.streams[RequestId("stays")] == own
            assert {"moves", "leaves"}.isdisjoint(box.streams)
            # What lies there is not what was added under those identities.
            refused = box.all(RequestFailed)
            assert [one.request_id for one in refused] == [f"before{place}" for place in range(BEFORE)]
            assert all("its files changed" in one.error for one in refused)
            assert await box.answer(with_adapter("again")) == own

    asyncio.run(scenario())


def test_only_those_used_last_stay_open(tiny_models_dir: Path, tmp_path: Path) -> None:
    base = tiny_models_dir / "tiny-llama"
    architecture, config = open_checkpoint(base).architecture, json.loads((base / "config.json").read_text())
    paths = [seeded_adapter(tmp_path / f"a{k}", config, k, config=adapter_config()) for k in range(6)]
    rung = threading.Semaphore(0)
    adapters = Adapters(rung.release, kept=2)

    def asks(k: int) -> AdapterWeights | None:
        file = AdapterFile(identity=identities[k], path=str(paths[k]))
        frame = msgspec.structs.replace(submit_frame(f"r{k}", "m", PROMPT, GREEDY), adapter=file)
        if adapters.waits(frame, architecture):
            opened.append(k)
            assert rung.acquire(timeout=60)
            assert adapters.opened() == [(frame, "")]
        return adapters.of(frame)

    def held() -> int:
        adapters.opened()
        return sum(str(tmp_path) in os.path.realpath(one) for one in Path("/proc/self/fd").iterdir())

    identities = [open_adapter(path, architecture).identity for path in paths]
    opened: list[int] = []
    running = asks(0)
    for k in (1, 2, 1, 3, 4, 1, 5, 2):
        asks(k)
    assert opened == [0, 1, 2, 3, 4, 5, 2]
    assert held() == 3  # 5, 2, and what a request has
    assert running is not None
    assert running.factors[0].a.any()
    del running
    assert held() == 2


@pytest.mark.usefixtures("leases")
def test_what_was_written_to_while_it_is_open_is_not_computed_with(tiny_models_dir: Path, tmp_path: Path) -> None:
    base = tiny_models_dir / "tiny-llama"
    architecture, config = open_checkpoint(base).architecture, json.loads((base / "config.json").read_text())
    path = seeded_adapter(tmp_path / "a", config, 1, config=adapter_config())
    file, rung = path / "adapter_model.safetensors", threading.Semaphore(0)
    adapters, content = Adapters(rung.release), file.read_bytes()
    wanted = AdapterFile(identity=open_adapter(path, architecture).identity, path=str(path))
    frame = msgspec.structs.replace(submit_frame("r", "m", PROMPT, GREEDY), adapter=wanted)

    def asked() -> str:
        assert adapters.waits(frame, architecture)
        assert rung.acquire(timeout=60)
        ((_, error),) = adapters.opened()
        return error

    assert asked() == ""
    assert not adapters.waits(frame, architecture)
    running = adapters.of(frame)
    assert running is not None
    before = [(one.a.copy(), one.b.copy()) for one in running.factors]
    file.write_bytes(content[:-4] + bytes(4))
    assert asked() == f"{path}: its files changed since it was added; add it again"
    os.truncate(file, 100)
    assert "is truncated" in asked()
    # Whoever was computed with it goes on with what it was.
    for one, (a, b) in zip(running.factors, before, strict=True):
        np.testing.assert_array_equal(one.a, a)
        np.testing.assert_array_equal(one.b, b)
    file.unlink()
    assert asked() == f"{path}: holds no adapter_model.safetensors"
    file.write_bytes(content)
    assert asked() == ""
    assert not adapters.waits(frame, architecture)
