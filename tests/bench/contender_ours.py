"""Our engine alone: seconds of a prefill of 512 tokens and of decode steps at context 512, as one JSON object.

    python contender_ours.py CHECKPOINT COMPUTE KV THREADS

A step is everything between two tokens but the scheduler: flat batch, iteration, the likeliest token of each row.
"""

import json
import statistics
import sys
import time
from pathlib import Path

from llmhostd_openvino import open_engine

from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import HardwareKey, NodeId
from llmhostd.domain.model import ComputePrecision, KvPrecision
from llmhostd.engines.interface import LoadOptions
from llmhostd.engines.paged_contexts import Context, PagedContexts

BATCHES = (1, 4, 16, 32)
CONTEXT = 512
STEPS = 20
PREFILLS = 6


def main(checkpoint: str, compute: str, kv: str, threads: str) -> None:
    """Measure and print."""
    node = NodeSpec(
        id=NodeId("cpu0"), engine="openvino", hardware_key=HardwareKey("bench"), cores=(0, 1), memory_bytes=8 << 30
    )
    options = LoadOptions(compute=ComputePrecision(compute), kv=KvPrecision(kv), threads=int(threads))
    instance = open_engine(node).load(Path(checkpoint), options)
    contexts = PagedContexts([instance], kv_blocks=max(BATCHES) * (CONTEXT // instance.block_tokens + 2))
    contexts.greedy(prompt(0), 3)
    seconds = {f"prefill {CONTEXT}": prefill_s(contexts)}
    for batch in BATCHES:
        seconds[f"decode {batch}"] = decode_s(contexts, batch)
    print(json.dumps(seconds))


def prompt(seed: int) -> list[int]:
    """Make a prompt of 512 ids that every contender is given."""
    return [3 + (seed * 7919 + place * place * 31) % 31_000 for place in range(CONTEXT)]


def prefill_s(contexts: PagedContexts) -> float:
    """Return the median of several prefills."""
    taken = []
    for seed in range(PREFILLS):
        context = Context(prompt(seed))
        begun = time.perf_counter()
        contexts.step([(context, CONTEXT)]).argmax(-1)
        taken.append(time.perf_counter() - begun)
        contexts.release(context)
    return statistics.median(taken)


def decode_s(contexts: PagedContexts, batch: int) -> float:
    """Return the median of decode steps that follow real prefills."""
    running = [Context(prompt(seed)) for seed in range(batch)]
    for context in running:
        context.tokens.append(int(contexts.step([(context, CONTEXT)])[0].argmax()))
    taken = []
    for _ in range(STEPS):
        begun = time.perf_counter()
        likeliest = contexts.step([(context, 1) for context in running]).argmax(-1)
        for context, token in zip(running, likeliest, strict=True):
            context.tokens.append(int(token))
        taken.append(time.perf_counter() - begun)
    for context in running:
        contexts.release(context)
    return statistics.median(taken)


if __name__ == "__main__":
    main(*sys.argv[1:])
