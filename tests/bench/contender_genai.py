"""openvino-genai's ContinuousBatchingPipeline at the points of `contender_ours`; runs in an interpreter that has it.

python contender_genai.py IR_DIRECTORY COMPUTE KV THREADS
"""

import sys
import time
from functools import partial

import numpy as np
import openvino as ov
import openvino_genai as genai
from contender_loop import answer

BATCHES, CONTEXT, STEPS, PREFILLS = (1, 4, 16, 32), 512, 20, 4


def prompt(seed: int) -> ov.Tensor:
    """Make the same ids as `contender_ours.prompt`."""
    ids = [3 + (seed * 7919 + place * place * 31) % 31_000 for place in range(CONTEXT)]
    return ov.Tensor(np.array([ids], np.int64))


class Pipeline:
    """Steps are timed from outside: scheduling, iteration and greedy sampling."""

    def __init__(self, directory: str, compute: str, kv: str, threads: int) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 2
        scheduler.max_num_batched_tokens = max(BATCHES) * CONTEXT
        scheduler.max_num_seqs = max(BATCHES)
        scheduler.enable_prefix_caching = False
        properties = {
            "INFERENCE_PRECISION_HINT": compute,
            "INFERENCE_NUM_THREADS": threads,
            "KV_CACHE_PRECISION": kv,
        }
        self._pipeline = genai.ContinuousBatchingPipeline(directory, scheduler, "CPU", properties)
        self._requests = 0

    def steps_s(self, batch: int, tokens: int) -> list[float]:
        """Run `batch` prompts for `tokens` output tokens each; returns the seconds of each step."""
        config = genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, do_sample=False)
        config.set_eos_token_id(2)  # the IR comes without generation_config.json
        kept = []
        for seed in range(batch):
            kept.append(self._pipeline.add_request(self._requests, prompt(seed), config))
            self._requests += 1
        taken = []
        while self._pipeline.has_non_finished_requests():
            begun = time.perf_counter()
            self._pipeline.step()
            taken.append(time.perf_counter() - begun)
        return taken


def main(directory: str, compute: str, kv: str, threads: str) -> None:
    """Measure what is asked for."""
    pipeline = Pipeline(directory, compute, kv, int(threads))
    pipeline.steps_s(1, 3)

    def decodes_s(batch: int) -> list[float]:
        return pipeline.steps_s(batch, STEPS + 1)[-STEPS:]

    prefills = {f"prefill {CONTEXT}": lambda: [pipeline.steps_s(1, 2)[0] for _ in range(PREFILLS)]}
    answer(prefills | {f"decode {batch}": partial(decodes_s, batch) for batch in BATCHES})


if __name__ == "__main__":
    main(*sys.argv[1:])
