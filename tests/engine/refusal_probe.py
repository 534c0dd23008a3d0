"""Refuses memory to the engine at several points, in a process of its own; prints what came of it as JSON.

python refusal_probe.py CHECKPOINT BROKEN_CHECKPOINT THREADS
"""

import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from llmhostd_openvino import open_engine

from llmhostd.domain.errors import LlmhostdError
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import HardwareKey, NodeId
from llmhostd.domain.model import ComputePrecision, KvPrecision
from llmhostd.engines.interface import EngineInstance, LoadOptions
from llmhostd.engines.paged_contexts import PagedContexts

NODE = NodeSpec(
    id=NodeId("cpu0"), engine="openvino", hardware_key=HardwareKey("probe"), cores=(0, 1), memory_bytes=1 << 30
)
OPTIONS = LoadOptions(compute=ComputePrecision.F32, kv=KvPrecision.U8, threads=int(sys.argv[3]))
LONG = [7] * 1000


def pages(field: int) -> int:
    return int(Path("/proc/self/statm").read_text().split()[field]) * resource.getpagesize()


def refused(call: Callable[[], object], spare_bytes: int) -> str:
    """Call with so little address space left; how it failed, or nothing."""
    none = resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_AS, (pages(0) + spare_bytes, none))
    try:
        call()
    except LlmhostdError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (none, none))
    return ""


def answer(instance: EngineInstance) -> np.ndarray:
    return PagedContexts([instance], kv_blocks=64).greedy(LONG, 1)[1]


def main(checkpoint: Path, broken: Path) -> None:
    engine = open_engine(NODE)

    def load() -> EngineInstance:
        return engine.load(checkpoint, OPTIONS)

    first = load()
    expected = answer(first)
    first.unload()
    report: dict[str, object] = {
        "map": refused(load, 1 << 20),
        "reserve": refused(load, 200 << 20),
        "corrupt": refused(lambda: engine.load(broken, OPTIONS), 1 << 33),
    }
    instance = load()
    PagedContexts([instance], kv_blocks=64).greedy([5] * 40, 2)
    held = instance.held_bytes(), instance.kv_blocks
    report["run"] = refused(lambda: answer(instance), 0)
    if str(report["run"]).startswith("ProcessLostError"):
        print(json.dumps(report), flush=True)
        os._exit(0)  # as it says: nothing else of this process can be trusted
    report["unchanged"] = held == (instance.held_bytes(), instance.kv_blocks)
    report["too large"] = refused(lambda: instance.resize_kv(1 << 24), 1 << 33)
    report["still"] = instance.kv_blocks
    before = pages(1)
    instance.unload()
    report["given back"] = before - pages(1)
    report["held after"] = instance.held_bytes() + instance.kv_blocks
    again = load()
    report["right again"] = bool((answer(again) == expected).all())
    print(json.dumps(report))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
