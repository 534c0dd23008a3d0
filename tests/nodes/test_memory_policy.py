"""Does a worker take its memory near its cores, and say so where it cannot?"""

import asyncio
import subprocess
import sys

import msgspec
import pytest

from llmhostd.compute.estimator import CorrectionPolicy
from llmhostd.compute.iteration_plan import SchedulingPolicy
from llmhostd.domain.reports import NodeUp
from llmhostd.engines.frames import StartFrame
from llmhostd.engines.supervisor import WorkerSupervisor
from llmhostd.memory.kv_demand import KvDemandPolicy
from llmhostd.memory.kv_watermark import WatermarkPolicy

PROGRAM = """
from llmhostd.worker.process import prefer_memory_of
said = [prefer_memory_of(domains) for domains in ((0,), (4096,), ())]
prefer_memory_of((0,))
held = bytearray(1 << 20)
lines = open("/proc/self/numa_maps").read().splitlines()
print(said, sum("prefer:0" in line for line in lines) > 0)
"""


def test_memory_is_preferred_from_the_nodes_domain() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['', 'Invalid argument', ''] True"


@pytest.mark.parametrize(("domains", "said"), [((), ()), ((4096,), ("its memory may lie in another NUMA domain",))])
def test_a_worker_says_what_its_device_lacks(stand_in, domains: tuple[int, ...], said: tuple[str, ...]) -> None:
    spec = msgspec.structs.replace(stand_in(), numa_domains=domains, caveats=("it is old",))
    start = StartFrame(
        spec=spec, scheduling=SchedulingPolicy(), kv_demand=KvDemandPolicy(), watermark=WatermarkPolicy(),
        correction=CorrectionPolicy(),
    )  # fmt: skip

    async def first_words() -> NodeUp:
        heard: asyncio.Queue[object] = asyncio.Queue()
        supervisor = WorkerSupervisor(start, heard.put_nowait)
        task = asyncio.create_task(supervisor.run())
        up = await heard.get()
        await supervisor.stop()
        await task
        assert isinstance(up, NodeUp)
        return up

    caveats = asyncio.run(first_words()).caveats
    assert caveats[0] == "it is old"
    assert [one[: len(told)] for one, told in zip(caveats[1:], said, strict=False)] == list(said)
    assert caveats[-1].startswith("no model is computed here")
    assert len(caveats) == 2 + len(said)
