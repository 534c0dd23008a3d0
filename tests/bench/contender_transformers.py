"""transformers + torch at the points of `contender_ours`; runs in an interpreter that has them.

python contender_transformers.py CHECKPOINT COMPUTE THREADS
"""

import sys
import time
from functools import partial

import torch
from contender_loop import answer
from transformers import AutoModelForCausalLM

BATCHES, CONTEXT, STEPS, PREFILLS = (1, 4, 16, 32), 512, 6, 2


def prompts(batch: int) -> torch.Tensor:
    """Make the same ids as `contender_ours.prompt`."""
    return torch.tensor(
        [[3 + (seed * 7919 + place * place * 31) % 31_000 for place in range(CONTEXT)] for seed in range(batch)]
    )


@torch.inference_mode()
def main(checkpoint: str, compute: str, threads: str) -> None:
    """Measure what is asked for."""
    torch.set_num_threads(int(threads))
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[compute]
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype).eval()
    model(prompts(1))

    def prefills_s() -> list[float]:
        taken_s = []
        for _ in range(PREFILLS):
            begun = time.perf_counter()
            model(prompts(1), use_cache=True, logits_to_keep=1).logits.argmax(-1)
            taken_s.append(time.perf_counter() - begun)
        return taken_s

    def decodes_s(batch: int) -> list[float]:
        out = model(prompts(batch), use_cache=True, logits_to_keep=1)
        taken_s = []
        for _ in range(STEPS):
            begun = time.perf_counter()
            tokens = out.logits[:, -1].argmax(-1, keepdim=True)
            out = model(tokens, past_key_values=out.past_key_values, use_cache=True)
            taken_s.append(time.perf_counter() - begun)
        return taken_s

    answer({f"prefill {CONTEXT}": prefills_s} | {f"decode {batch}": partial(decodes_s, batch) for batch in BATCHES})


if __name__ == "__main__":
    main(*sys.argv[1:])
