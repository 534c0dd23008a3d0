"""How much sooner is a first token there if a prompt is computed while weights are still being read? (λScale §4.)

From the disk, in turns with a load that is whole before anything computes; both with graphs that were compiled before.
"""

import os
import statistics
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from box import store
from first_token import data_file, evict
from llmhostd_openvino.engine import OpenVinoEngine
from llmhostd_openvino.instance import OpenVinoInstance

from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import HardwareKey, NodeId
from llmhostd.domain.model import ComputePrecision, KvPrecision
from llmhostd.engines.interface import FillingInstance, Floats, LoadOptions
from llmhostd.engines.paged_contexts import Context, PagedContexts

ROUNDS = int(os.environ.get("LLMHOSTD_BENCH_ROUNDS", "5"))
LARGE = {"layers": 22, "hidden": 2048, "heads": 32, "kv_heads": 4, "intermediate": 5632}
"""1.1B parameters: eight parts."""
PROMPTS = (16, 128, 512, 1500)
CORES = tuple(sorted(os.sched_getaffinity(0)))
NODE = NodeSpec(
    id=NodeId("cpu0"), engine="openvino", hardware_key=HardwareKey("here"), cores=CORES, memory_bytes=1 << 32
)
WHOLE = LoadOptions(compute=ComputePrecision.BF16, kv=KvPrecision.U8, threads=len(CORES))
EARLY = msgspec.structs.replace(WHOLE, early=True)


def first_logits(engine: OpenVinoEngine, model: Path, options: LoadOptions, tokens: int) -> tuple[float, Floats]:
    """Seconds from the order to load until a prompt is computed; and what came out."""
    evict(data_file(model))
    began_s = time.perf_counter()
    instance = engine.load(model, options)
    assert isinstance(instance, OpenVinoInstance)
    contexts = PagedContexts([instance], -(-tokens // instance.block_tokens))
    context = Context([number % 30000 + 1 for number in range(tokens)])
    work = [(context, tokens)]
    if isinstance(instance, FillingInstance) and instance.filling:
        begin_while_it_fills(instance, contexts, work)
    rows = contexts.step(work)
    took_s = time.perf_counter() - began_s
    instance.unload()
    return took_s, rows


def begin_while_it_fills(instance: FillingInstance, contexts: PagedContexts, work: list[tuple[Context, int]]) -> None:
    more = threading.Event()
    builder = threading.Thread(target=lambda: (instance.fill(more.set), more.set()))
    builder.start()
    while instance.filling:
        more.wait()
        more.clear()
        instance.begin(contexts.iteration(work))
    builder.join()


@pytest.mark.parametrize("tokens", PROMPTS)
def test_prompts_are_computed_while_weights_are_read(capsys: pytest.CaptureFixture[str], tokens: int) -> None:
    engine, model = OpenVinoEngine(NODE), store(**LARGE)
    first_logits(engine, model, WHOLE, 8)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(ROUNDS):
        whole_s, expected = first_logits(engine, model, WHOLE, tokens)
        early_s, got = first_logits(engine, model, EARLY, tokens)
        np.testing.assert_array_equal(got, expected)
        seconds[False].append(whole_s)
        seconds[True].append(early_s)
    ratio = statistics.median(early / whole for whole, early in zip(seconds[False], seconds[True], strict=True))
    with capsys.disabled():
        whole_s, early_s = (statistics.median(seconds[early]) for early in (False, True))
        print(
            f"\n{model.name}, prompt of {tokens}: read first {whole_s:.3f} s, computed meanwhile {early_s:.3f} s;"
            f" median of {ROUNDS} ratios {ratio:.2f}"
        )
