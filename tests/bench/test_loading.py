"""At what share of the disk's speed do checkpoints come? (ServerlessLLM figs. 6 and 7.) Cold page cache, paired."""

import os
import random
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
DD_BLOCKS = ("4M", "8M", "16M")


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
    contenders = [*(f"dd {block}" for block in DD_BLOCKS), *WAYS, *(("safetensors", "torch") if PEER else ())]
    for turn in range(ROUNDS):
        # Whoever comes after the same neighbour every time has its leavings: memory of the machine below, credit with
        # its disk.
        for one in random.Random(turn).sample(contenders, len(contenders)):
            seconds.setdefault(one, []).append(once_s(one, made, plain, pickled))
    rounds = [min(each) for each in zip(*(seconds[f"dd {block}"] for block in DD_BLOCKS), strict=True)]
    size, ours = data.stat().st_size, seconds["page cache, checked"]
    with capsys.disabled():
        print(f"\n{source.name}, {size / 1e9:.2f} GB, {ROUNDS} rounds; dd O_DIRECT at its best {min(rounds):.3f} s")
        for one in contenders:
            taken = seconds[one]
            middle = statistics.median(taken)
            print(
                f"{one:22} median {middle:6.3f} s ({size / middle / 1e9:4.2f} GB/s), in its round"
                f" {paired(rounds, taken):5.0%} of the best dd's speed, {paired(taken, ours):5.2f} x ours;"
                f" best {min(taken):6.3f} s ({min(rounds) / min(taken):5.0%} of dd's best)"
            )


def once_s(contender: str, made: Path, plain: Path, pickled: Path) -> float:
    """Seconds that one way of reading takes, from a cold page cache."""
    evict(made / DATA_FILE, plain)
    if contender.startswith("dd "):
        return dd_s(made / DATA_FILE, contender.removeprefix("dd "))
    if contender in WAYS:
        return printed_s(sys.executable, str(HERE / "contender_loading.py"), contender, str(made))
    file = plain if contender == "safetensors" else pickled
    evict(file)
    return printed_s(PEER, str(HERE / "contender_files.py"), contender, str(file))


def paired(above: list[float], below: list[float]) -> float:
    """The median ratio of two that were measured in the same rounds."""
    return statistics.median(one / other for one, other in zip(above, below, strict=True))
