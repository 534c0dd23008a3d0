"""Our engine alone: seconds of prefills of 512 tokens and of decode steps at context 512.

    python contender_ours.py CHECKPOINT COMPUTE KV THREADS

A step is everything between two tokens but the scheduler: what the runner does, to the drawn token of each request.
"""

import sys
import time
from functools import partial
from pathlib import Path

from contender_loop import answer
from llmhostd_openvino import open_engine

from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import HardwareKey, NodeId, RequestId
from llmhostd.domain.model import ComputePrecision, KvPrecision
from llmhostd.domain.node_events import RowPlan
from llmhostd.domain.request import Sampling
from llmhostd.engines.interface import LoadOptions
from llmhostd.engines.runner import Runner

BATCHES = (1, 4, 16, 32)
CONTEXT = 512
STEPS = 20
PREFILLS = 4


def main(checkpoint: str, compute: str, kv: str, threads: str) -> None:
    """Measure what is asked for."""
    steps = Steps(checkpoint, compute, kv, int(threads))
    steps.prefill_s(0)
    prefills = {f"prefill {CONTEXT}": lambda: [steps.prefill_s(seed) for seed in range(1, PREFILLS + 1)]}
    answer(prefills | {f"decode {batch}": partial(steps.decode_s, batch, STEPS) for batch in BATCHES})


def prompt(seed: int) -> list[int]:
    """Make a prompt of 512 ids that every contender is given."""
    return [3 + (seed * 7919 + place * place * 31) % 31_000 for place in range(CONTEXT)]


class Steps:
    """Times iterations of one instance."""

    def __init__(self, checkpoint: str, compute: str, kv: str, threads: int) -> None:
        node = NodeSpec(
            id=NodeId("cpu0"), engine="openvino", hardware_key=HardwareKey("bench"), cores=(0, 1), memory_bytes=8 << 30
        )
        options = LoadOptions(compute=ComputePrecision(compute), kv=KvPrecision(kv), threads=threads)
        instance = open_engine(node).load(Path(checkpoint), options)
        instance.pack()
        self._runner = Runner(instance)
        self._runner.resize(max(BATCHES) * (CONTEXT // self._runner.instance.block_tokens + 2))
        while not instance.settled:
            self.prefill_s(0)

    def prefill_s(self, seed: int) -> float:
        """Time one prefill."""
        self._forget()
        plan = self._submit(seed)
        begun = time.perf_counter()
        self._runner.run([plan])
        taken_s = time.perf_counter() - begun
        self._runner.drop(plan.request_id)
        return taken_s

    def decode_s(self, batch: int, steps: int) -> list[float]:
        """Time decode steps that follow real prefills."""
        self._forget()
        prefills = [self._submit(seed) for seed in range(batch)]
        for one in prefills:
            self._runner.run([one])
        decodes = [RowPlan(request_id=one.request_id, tokens=1, sample=True) for one in prefills]
        taken_s = []
        for _ in range(steps):
            begun = time.perf_counter()
            self._runner.run(decodes)
            taken_s.append(time.perf_counter() - begun)
        for one in decodes:
            self._runner.drop(one.request_id)
        return taken_s

    def _forget(self) -> None:
        """Keep no prefix of an earlier prompt: all of the next ones is to be computed."""
        blocks = self._runner.instance.kv_blocks
        self._runner.resize(0)
        self._runner.resize(blocks)

    def _submit(self, seed: int) -> RowPlan:
        request_id = RequestId(f"prompt-{seed}")
        sampling = Sampling(max_tokens=2 * CONTEXT, temperature=0.0, ignore_eos=True)
        self._runner.submit(request_id, prompt(seed), sampling)
        return RowPlan(request_id=request_id, tokens=CONTEXT, sample=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
