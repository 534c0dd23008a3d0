"""What does a stream lose while its daemon hands another model's weights on to a peer? (`http.max_store_transfers`.)

The peer is on the same cores: what it takes to receive is in it, too.
"""

import os
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from box import Box, box, store
from first_token import Stream, cache, data_file, first_token_s, until

ROUNDS = int(os.environ.get("LLMHOSTD_BENCH_ROUNDS", "5"))
LARGE = {"layers": 22, "hidden": 2048, "heads": 32, "kv_heads": 4, "intermediate": 5632}
FETCHERS: dict[str, tuple[int, str]] = {
    "nobody fetches": (0, ""),
    "one, 125 MB/s (a wire of 1 Gbit/s)": (1, "125M"),
    "four, 125 MB/s together": (4, "31M"),
    "one, as fast as it can": (1, "100G"),
    "four, as fast as they can": (4, "100G"),
}
"""How many, and how fast each of them."""
LONG_S = 1.5
CONFIG = "max_store_transfers = 4\n[slo]\nttft_s = 60.0\ntpot_s = 5.0\n"


@contextmanager
def fetching(here: Box, model: Path, count: int, pace: str) -> Iterator[None]:
    """Have a model's weights fetched again and again."""
    address = f"{here.url}/api/v1/models/{model.name}/store/{data_file(model).name}"
    command = f"while curl --silent --fail --limit-rate {pace} --output /dev/null {address}; do :; done"
    fetchers = [subprocess.Popen(["sh", "-c", command], start_new_session=True) for _ in range(count)]
    try:
        yield
        assert all(one.poll() is None for one in fetchers), "they were refused"
    finally:
        for one in fetchers:
            os.killpg(one.pid, 9)
            one.wait()


def test_what_a_stream_loses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small, large = store(), store(**LARGE)
    rows: dict[str, list[list[float]]] = {}
    with box(tmp_path, [small, large], config=CONFIG) as here:
        first_token_s(here, small.name)
        here.settle()
        cache(data_file(large))
        for _ in range(ROUNDS):
            for what, (count, pace) in FETCHERS.items():
                stream = Stream(here, small.name, 1500)
                until(lambda stream=stream: len(stream.said_s) > 50)
                with fetching(here, large, count, pace):
                    time.sleep(0.3)
                    began_s = time.perf_counter()
                    time.sleep(LONG_S)
                    gaps = stream.gaps_s(began_s, began_s + LONG_S)
                rows.setdefault(what, []).append(gaps)
                stream.leave()
    with capsys.disabled():
        print(f"\nms between tokens of {small.name}, batch 1, {ROUNDS} rounds: median (of rounds), 99 %, longest")
        for what, rounds in rows.items():
            print(f"  {what:36} {told(rounds)}")


def told(rounds: Sequence[Sequence[float]]) -> str:
    """Gaps of several rounds, for a person."""
    every = sorted(gap for gaps in rounds for gap in gaps)
    medians = [statistics.median(gaps) for gaps in rounds]
    figures = (statistics.median(medians), every[len(every) * 99 // 100], every[-1])
    return "".join(f"{figure * 1e3:7.1f}" for figure in figures)
