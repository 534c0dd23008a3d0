"""How soon does a model answer that is not loaded, or not packed? Request to first token, through a real daemon."""

import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from box import box, store
from first_token import Stream, become, cache, data_file, dd_s, evict, first_token_s, loads, until

from llmhostd.devices.counters import process_use

ROUNDS = int(os.environ.get("LLMHOSTD_BENCH_ROUNDS", "5"))
LARGE = {"layers": 22, "hidden": 2048, "heads": 32, "kv_heads": 4, "intermediate": 5632}
"""1.1B parameters."""
MANY = 40
PATIENT = ("--ttft", "30", "--tpot", "2")
"""Nobody is refused here, however slow the machine is that runs this."""


@pytest.mark.parametrize("sizes", [{}, LARGE], ids=["156M", "1.1B"])
def test_first_token(tmp_path: Path, capsys: pytest.CaptureFixture[str], sizes: dict[str, int]) -> None:
    model = store(**sizes)
    name, data = model.name, data_file(model)
    rows: dict[str, list[float]] = {}
    with box(tmp_path, [model], *PATIENT) as here:
        first_token_s(here, name)
        here.settle()

        def resident() -> None:
            first_token_s(here, name, max_tokens=64)

        def warm() -> None:
            become(here, name, "cold")
            become(here, name, "warm")

        def cold_cached() -> None:
            become(here, name, "cold")
            cache(data)

        def cold_disk() -> None:
            become(here, name, "cold")
            evict(data)

        states: dict[str, Callable[[], None]] = {
            "resident": resident, "warm": warm, "cold, cached": cold_cached, "cold, disk": cold_disk,
        }  # fmt: skip
        for _ in range(ROUNDS):
            evict(data)
            rows.setdefault("dd O_DIRECT", []).append(dd_s(data, "8M"))
            for state, prepare in states.items():
                prepare()
                rows.setdefault(state, []).append(first_token_s(here, name))
    first_of_its_shape = []
    for _ in range(ROUNDS):
        with box(tmp_path, [model], *PATIENT) as here:
            become(here, name, "cold")
            cache(data)
            first_of_its_shape.append(first_token_s(here, name))
            become(here, name, "cold")
    rows["cold, cached, new shape"] = first_of_its_shape
    with capsys.disabled():
        print(f"\n{name}, {data.stat().st_size / 1e9:.2f} GB: request to first token, {ROUNDS} rounds")
        for state, taken in rows.items():
            print(f"{state:23} median {statistics.median(taken):.3f} s, best {min(taken):.3f} s")
        for took_s, stages in loads(tmp_path):
            print(
                f"  load {took_s:.3f} s: read {stages.read_s:.3f} ({stages.disk_bytes / 1e6:.0f} MB of"
                f" {stages.read_bytes / 1e6:.0f} MB from disk), build {stages.build_s:.3f},"
                f" compile {stages.compile_s:.3f}"
            )


def test_neighbour(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A 156M model streams while 1.1B are loaded from the page cache and answer."""
    small, large = store(), store(**LARGE)
    rows: dict[str, list[float]] = {}
    with box(tmp_path, [small, large], *PATIENT) as here:
        for model in (small, large):
            first_token_s(here, model.name)
        here.settle()
        for _ in range(ROUNDS):
            become(here, large.name, "cold")
            cache(data_file(large))
            stream = Stream(here, small.name, 900)
            until(lambda stream=stream: len(stream.said_s) > 100)
            began_s = time.perf_counter()
            alone = stream.gaps_s(0, began_s)[20:]
            took_s = first_token_s(here, large.name)
            beside = stream.gaps_s(began_s, began_s + took_s)
            until(lambda stream=stream: stream.ended)
            after = stream.gaps_s(began_s + took_s, began_s + took_s + 2)
            for what, seconds in (
                ("gap alone, median", statistics.median(alone)),
                ("gap while it loads, median", statistics.median(beside)),
                ("gap while it loads, longest", max(beside)),
                ("gap while it packs, median", statistics.median(after)),
                ("first token of the one that loads", took_s),
            ):
                rows.setdefault(what, []).append(seconds)
    with capsys.disabled():
        print(f"\n{small.name} beside a load of {large.name}, {ROUNDS} rounds")
        for what, taken in rows.items():
            print(f"{what:34} median {statistics.median(taken) * 1e3:6.1f} ms of {[round(one * 1e3) for one in taken]}")


def test_many_warm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """40 models of 156M, warm at once; each is asked once."""
    data = store()
    models = [tmp_path / f"m{number}" for number in range(MANY)]
    for model in models:
        shutil.copytree(data, model)
    with box(tmp_path / "state", models, *PATIENT) as here:
        first_token_s(here, models[0].name)
        here.settle()
        for model in models[1:]:
            become(here, model.name, "warm")
        workers = here.worker_pids()
        held = process_use(workers).pss_bytes
        taken = [first_token_s(here, model.name) for model in models[1:]]
    with capsys.disabled():
        print(f"\n{MANY} models of 156M warm, worker {held / 1e9:.2f} GB PSS (page cache included)")
        print(f"first token: median {statistics.median(taken):.3f} s, longest {max(taken):.3f} s")
