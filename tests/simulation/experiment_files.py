"""A small trace and small profiles, as files: what experiments in these tests are made of."""

import json
from pathlib import Path

from llmhostd.simulator.experiment import Experiment

PREFILL_MS = {"cpu": [[1, 50], [1024, 500], [4096, 2400]], "gpu": [[1, 20], [1024, 90], [4096, 340]]}
DECODE_MS = {
    "cpu": [
        {"context_tokens": 512, "by_batch": [[1, 60], [4, 80], [16, 160]]},
        {"context_tokens": 4096, "by_batch": [[1, 70], [4, 120]]},
    ],
    "gpu": [
        {"context_tokens": 512, "by_batch": [[1, 14], [4, 16], [16, 24], [64, 50]]},
        {"context_tokens": 4096, "by_batch": [[1, 16], [4, 24], [16, 60]]},
    ],
}
NODES = {"cpu": "xeon-6462c-32c", "gpu": "a100-80g"}
LIMITS = {"cpu": (4, 2), "gpu": (8, 3)}


def published(model: str, device: str) -> dict[str, object]:
    """One entry of a profiles file."""
    alone, shared = LIMITS[device]
    return {
        "model": model, "device": device, "node": NODES[device], "prefill_ms": PREFILL_MS[device],
        "decode_ms": DECODE_MS[device], "sllm_concurrency": alone, "sllm_share_concurrency": shared,
    }  # fmt: skip


def write_profiles(folder: Path, *, models: tuple[str, ...] = ("llama-2-7b", "llama-3.2-3b")) -> Path:
    """Write a profiles file."""
    path = folder / "profiles.json"
    path.write_text(json.dumps({"profiles": [published(model, device) for model in models for device in NODES]}))
    return path


def write_trace(folder: Path, *rows: tuple[float, int, int, int]) -> Path:
    """Write a trace: arrival, model, input and output tokens."""
    path = folder / "trace.csv"
    lines = ["arrival_s,model_id,input_tokens,output_tokens", *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def crowd(*, models: int, every_s: float, seconds: float) -> list[tuple[float, int, int, int]]:
    """Make requests to `models` models in turn, of differing lengths."""
    count = int(seconds / every_s)
    return [(round(n * every_s, 3), n * 7 % models, 200 + n * 37 % 900, 5 + n * 13 % 60) for n in range(count)]


def experiment(folder: Path, *rows: tuple[float, int, int, int], **more: object) -> Experiment:
    """Make an experiment of these requests."""
    return Experiment(trace=write_trace(folder, *rows), profiles=write_profiles(folder), **more)  # type: ignore[arg-type]
