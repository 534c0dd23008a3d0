"""At what share of the disk's speed do checkpoints come? (ServerlessLLM figs. 6 and 7.) Cold page cache, paired."""

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from box import checkpoints, store
from contender_loading import WAYS
from first_token import dd_s, evict

from llmhostd.loader.store_index import DATA_FILE

ROUNDS = int(os.environ.get("LLMHOSTD_BENCH_ROUNDS", "5"))
PEER = os.environ.get("LLMHOSTD_PEER_PYTHON", "")
LARGE = {"layers": 22, "hidden": 2048, "heads": 32, "kv_heads": 4, "intermediate": 5632}
"""1.1B parameters."""
HERE = Path(__file__).parent


def printed_s(*command: str) -> float:
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize("sizes", [{}, LARGE], ids=["156M", "1.1B"])
def test_reading(capsys: pytest.CaptureFixture[str], sizes: dict[str, int]) -> None:
    (source,) = checkpoints(1, **sizes)
    made = store(**sizes)
    data, plain, pickled = made / DATA_FILE, source / "model.safetensors", source / "model.pt"
    if PEER and not pickled.exists():
        subprocess.run([PEER, str(HERE / "contender_files.py"), "make-torch", str(plain)], check=True)
    seconds: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for block in ("4M", "8M", "16M"):
            seconds.setdefault("dd", []).append(dd_s(data, block))
        for way in WAYS:
            evict(data)
            took_s = printed_s(sys.executable, str(HERE / "contender_loading.py"), way, str(made))
            seconds.setdefault(way, []).append(took_s)
        for how, file in (("safetensors", plain), ("torch", pickled)) if PEER else ():
            evict(file)
            took_s = printed_s(PEER, str(HERE / "contender_files.py"), how, str(file))
            seconds.setdefault(how, []).append(took_s)
    size = data.stat().st_size
    best_dd_s = min(seconds["dd"])
    with capsys.disabled():
        print(f"\n{source.name}, {size / 1e9:.2f} GB, {ROUNDS} rounds; dd O_DIRECT at its best {best_dd_s:.3f} s")
        for way, taken in seconds.items():
            middle = statistics.median(taken)
            dd, ours = (statistics.median(seconds[one]) for one in ("dd", "page cache, checked"))
            print(
                f"{way:22} median {middle:6.3f} s ({size / middle / 1e9:4.2f} GB/s, {dd / middle:5.0%} of dd's median,"
                f" {middle / ours:5.2f} x ours), best {min(taken):6.3f} s ({best_dd_s / min(taken):5.0%} of dd's best)"
            )
