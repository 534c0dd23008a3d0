"""llama.cpp at the points of `contender_ours`, by its own `llama-batched-bench`.

python contender_llama.py BINARY GGUF THREADS
"""

import json
import subprocess
import sys

BATCHES, CONTEXT, STEPS = (1, 4, 16, 32), 512, 16


def main(binary: str, gguf: str, threads: str) -> None:
    """Measure and print."""
    cells = str(max(BATCHES) * (CONTEXT + STEPS))
    sizes = ["-npp", str(CONTEXT), "-ntg", str(STEPS), "-npl", ",".join(map(str, BATCHES)), "-c", cells]
    batch = ["-b", "2048", "-ub", "512", "-t", threads, "-tb", threads]
    command = [binary, "-m", gguf, *sizes, *batch, "--output-format", "jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    seconds = {f"decode {row['pl']}": row["t_tg"] / row["tg"] for row in rows}
    seconds[f"prefill {CONTEXT}"] = next(row["t_pp"] for row in rows if row["pl"] == 1)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
