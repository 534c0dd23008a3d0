"""What do adapters cost? Ready, in memory, and in a decode step, for rank 16 on a base of 1.1B parameters in bf16.

Adapters of the attention's four linear layers, and of all seven, are measured apart: the latter have 2.8 times the
bytes.
"""

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import checkpoints
from goldens.adapters import ALL, ATTENTION, adapter_config, seeded_adapter
from llmhostd_openvino import open_engine

from llmhostd.checkpoints.adapter import linear_names
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import HardwareKey, NodeId
from llmhostd.domain.model import AdapterSlots, ComputePrecision, KvPrecision
from llmhostd.engines.interface import EngineInstance, LoadOptions
from llmhostd.engines.paged_contexts import Context, PagedContexts
from llmhostd.loader.adapter import open_adapter

RANK, SLOTS, MANY = 16, 8, 20
CONTEXT, ROUNDS, STEPS = 128, 6, 8
TARGETS = {"attention": ATTENTION, "all seven": ALL}


@pytest.fixture(scope="module")
def base() -> Path:
    (path,) = checkpoints(1, heads=32, hidden=2048, intermediate=5632, kv_heads=4, layers=22)
    return path


def load(base: Path, slots: int, targets: str) -> EngineInstance:
    node = NodeSpec(
        id=NodeId("cpu0"), engine="openvino", hardware_key=HardwareKey("bench"), cores=(0, 1), memory_bytes=8 << 30
    )
    modules = tuple(name for name in linear_names() if name.rpartition(".")[2] in TARGETS[targets]) if slots else ()
    room = AdapterSlots(slots=slots, rank=RANK, modules=modules) if slots else None
    return open_engine(node).load(
        base, LoadOptions(compute=ComputePrecision.BF16, kv=KvPrecision.U8, threads=2, adapters=room)
    )


def written(directory: Path, base: Path, targets: str, count: int, dtype: str = "BF16") -> Iterator[Path]:
    config = json.loads((base / "config.json").read_text())
    kind = adapter_config(rank=RANK, alpha=32, targets=TARGETS[targets])
    for seed in range(count):
        yield seeded_adapter(directory / f"{targets}-{dtype}-{seed}", config, seed, dtype, kind)


def anonymous_mb() -> float:
    """What this process holds beside mapped files."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1e3


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
@pytest.mark.parametrize("targets", TARGETS)
def test_ready(base: Path, tmp_path: Path, targets: str, dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    """From a directory (in the page cache) to a slot that the next iteration may use; no slot was written before."""
    instance = load(base, SLOTS, targets)
    opened_ms, placed_ms = [], []
    for slot, path in enumerate(written(tmp_path, base, targets, SLOTS, dtype)):
        began = time.perf_counter()
        weights = open_adapter(path, instance.shape.architecture)
        opened = time.perf_counter()
        instance.set_adapter(slot, weights)
        opened_ms.append((opened - began) * 1e3)
        placed_ms.append((time.perf_counter() - opened) * 1e3)
    instance.unload()
    total = [one + two for one, two in zip(opened_ms, placed_ms, strict=True)]
    with capsys.disabled():
        print(
            f"\nready, {targets} in {dtype} ({weights.weight_bytes / 1e6:.0f} MB): median "
            f"{statistics.median(total):.1f} ms, worst {max(total):.1f} "
            f"(open {statistics.median(opened_ms):.1f}, place {statistics.median(placed_ms):.1f})"
        )


@pytest.mark.parametrize("targets", TARGETS)
def test_memory(base: Path, tmp_path: Path, targets: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All of them in slots, after a step."""
    instance = load(base, MANY, targets)
    contexts = PagedContexts([instance], kv_blocks=MANY * 2)
    contexts.greedy(list(range(5, 45)), 2)
    before = anonymous_mb()
    for slot, path in enumerate(written(tmp_path, base, targets, MANY)):
        weights = open_adapter(path, instance.shape.architecture)
        instance.set_adapter(slot, weights)
    contexts.step([(Context([5, 6], slot), 2) for slot in range(MANY)])
    more, model = anonymous_mb() - before, instance.shape.weight_bytes / 1e6
    instance.unload()
    with capsys.disabled():
        stored = MANY * weights.weight_bytes / 1e6
        print(
            f"\n{MANY} adapters, {targets}: {stored:.0f} MB of factors, {more:.0f} MB more in the process, "
            f"beside a base of {model:.0f} MB: {1 + max(more, stored) / model:.3f} times"
        )


@pytest.mark.parametrize("targets", TARGETS)
def test_decode(base: Path, tmp_path: Path, targets: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A step of 8 requests with 8 adapters against one of 8 requests on the base alone, in turn."""
    plain, roomy = load(base, 0, targets), load(base, SLOTS, targets)
    for slot, path in enumerate(written(tmp_path, base, targets, SLOTS)):
        roomy.set_adapter(slot, open_adapter(path, roomy.shape.architecture))
    rows = {"base": [-1] * SLOTS, "8 adapters": list(range(SLOTS)), "none of 8": [-1] * SLOTS}
    instances = {"base": plain, "8 adapters": roomy, "none of 8": roomy}
    contexts = {one: PagedContexts([one], kv_blocks=2 * SLOTS * (CONTEXT // 32 + 4)) for one in (plain, roomy)}
    running = {}
    for name, slots in rows.items():
        running[name] = [Context([3 + place % 997 for place in range(CONTEXT)], slot) for slot in slots]
        for one in running[name]:
            contexts[instances[name]].step([(one, CONTEXT)])
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(ROUNDS):
        for name, contexts_of in running.items():
            for step in range(STEPS):
                for one in contexts_of:
                    one.tokens.append(7)
                began = time.perf_counter()
                contexts[instances[name]].step([(one, 1) for one in contexts_of])
                if step:
                    seconds[name].append(time.perf_counter() - began)
    base_s = statistics.median(seconds["base"])
    with capsys.disabled():
        for name, taken in seconds.items():
            median = statistics.median(taken)
            print(f"\ndecode of {SLOTS}, {targets}, {name}: {median * 1e3:.1f} ms, {median / base_s:.3f} times", end="")
        print()
    for one in (plain, roomy):
        one.unload()
