"""llama.cpp at the points of `contender_ours`, by its own `llama-batched-bench`.

python contender_llama.py BINARY GGUF THREADS
"""

import json
import subprocess
import sys
from functools import partial
from typing import Any

from contender_loop import answer

BATCHES, CONTEXT, STEPS = (1, 4, 16, 32), 512, 16


def main(binary: str, gguf: str, threads: str) -> None:
    """Measure what is asked for."""

    def row(batch: int) -> dict[str, Any]:
        sizes = ["-npp", str(CONTEXT), "-ntg", str(STEPS), "-npl", str(batch), "-c", str(batch * (CONTEXT + STEPS))]
        options = ["-b", "2048", "-ub", "512", "-t", threads, "-tb", threads, "--output-format", "jsonl"]
        done = subprocess.run([binary, "-m", gguf, *sizes, *options], capture_output=True, text=True, check=True)
        said: dict[str, Any] = next(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
        return said

    def step_s(batch: int) -> list[float]:
        said = row(batch)
        return [said["t_tg"] / said["tg"]]

    prefills = {f"prefill {CONTEXT}": lambda: [row(1)["t_pp"]]}
    answer(prefills | {f"decode {batch}": partial(step_s, batch) for batch in BATCHES})


if __name__ == "__main__":
    main(*sys.argv[1:])
