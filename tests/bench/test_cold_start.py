"""How soon does a model answer that is not loaded, or not packed? Request to first token, through a real daemon."""

import os
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from box import box, store
from first_token import (
    Asked,
    Stream,
    asked,
    become,
    cache,
    data_file,
    dd_s,
    evict,
    faults,
    first_token_s,
    until,
)
from process_use import process_use

from llmhostd.domain.reports import LoadStages

ROUNDS = int(os.environ.get("LLMHOSTD_BENCH_ROUNDS", "5"))
LARGE = {"layers": 22, "hidden": 2048, "heads": 32, "kv_heads": 4, "intermediate": 5632}
"""1.1B parameters."""
RESIDENT = "resident"
MANY = 40
PATIENT = ("--ttft", "30", "--tpot", "2")
"""Nobody is refused here, however slow the machine is that runs this."""


@pytest.mark.parametrize("sizes", [{}, LARGE], ids=["156M", "1.1B"])
def test_first_token(tmp_path: Path, capsys: pytest.CaptureFixture[str], sizes: dict[str, int]) -> None:
    model = store(**sizes)
    name, data = model.name, data_file(model)
    rows: dict[str, list[float]] = {}
    faulted: dict[str, list[tuple[int, int]]] = {}
    said: list[str] = []
    """In which state a model was asked, in order; empty: to bring it into one."""
    with box(tmp_path / "one", [model], *PATIENT) as here:

        def ask(state: str = "", max_tokens: int = 4) -> None:
            workers = here.worker_pids()
            before = faults(workers)
            took_s = first_token_s(here, name, max_tokens)
            said.append(state)
            after = faults(workers)
            rows.setdefault(state, []).append(took_s)
            faulted.setdefault(state, []).append((after[0] - before[0], after[1] - before[1]))

        ask()
        here.settle()

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
            RESIDENT: lambda: ask(max_tokens=64), "warm": warm, "cold, cached": cold_cached, "cold, disk": cold_disk,
        }  # fmt: skip
        for _ in range(ROUNDS):
            evict(data)
            rows.setdefault("dd O_DIRECT", []).append(dd_s(data, "8M"))
            for state, prepare in states.items():
                prepare()
                ask(state)
    first_of_its_shape = []
    for _ in range(ROUNDS):
        with box(tmp_path / "one", [] if first_of_its_shape else [model], *PATIENT) as here:
            become(here, name, "cold")
            cache(data)
            first_of_its_shape.append(first_token_s(here, name))
            become(here, name, "cold")
    del rows[""]
    rows["cold, cached, new shape"] = first_of_its_shape
    with capsys.disabled():
        print(f"\n{name}, {data.stat().st_size / 1e9:.2f} GB: request to first token, {ROUNDS} rounds")
        for state, taken in rows.items():
            print(f"{state:23} median {statistics.median(taken):.3f} s, best {min(taken):.3f} s")
        print_parts(asked(tmp_path / "one"), said, faulted)


def print_parts(found: Sequence[Asked], said: Sequence[str], faulted: dict[str, list[tuple[int, int]]]) -> None:
    """Where the time went, in medians of milliseconds; stages overlap. Its own first step is that of one resident."""
    by_state: dict[str, list[Asked]] = {}
    for state, one in zip(said, found, strict=False):
        by_state.setdefault(state, []).append(one)
    own_s = statistics.median(one.first_s for one in by_state[RESIDENT])
    print("  ms            load  (read  build  compile)  first iteration  (own step  packing)  rest  faults, of a disk")
    for state, some in by_state.items():
        if state:
            load, first, rest = (
                1e3 * statistics.median(getattr(one, part) for one in some) for part in ("load_s", "first_s", "rest_s")
            )
            read, build, compiled = (
                1e3 * statistics.median(getattr(one.stages or LoadStages(), part) for one in some)
                for part in ("read_s", "build_s", "compile_s")
            )
            minor, major = (statistics.median(one[kind] for one in faulted[state]) for kind in (0, 1))
            print(
                f"  {state:12} {load:5.0f} {read:6.0f} {build:6.0f} {compiled:8.0f} {first:17.0f} {1e3 * own_s:11.0f}"
                f" {max(first - 1e3 * own_s, 0.0):8.0f} {rest:6.0f} {minor:7.0f} {major:9.0f}"
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
    """40 models of 156M, warm at once; each is asked once. They have files of their own, so nothing is shared."""
    data, began_s = store(), time.monotonic()
    models = [tmp_path / f"m{number}" for number in range(MANY)]
    try:
        for model in models:
            shutil.copytree(data, model)
        with box(tmp_path / "state", models, *PATIENT) as here:
            first_token_s(here, models[0].name)
            here.settle()
            for model in models[1:]:
                become(here, model.name, "warm")
            workers = here.worker_pids()
            held = process_use(workers).pss_bytes
            warm = sum(one["state"] == "warm" for one in here.get("/api/v1/instances"))
            faulted, taken = faults(workers), [first_token_s(here, model.name) for model in models[1:]]
            minor, major = (after - before for before, after in zip(faulted, faults(workers), strict=True))
        found = asked(tmp_path / "state")[1:]
    finally:
        for model in models:
            shutil.rmtree(model, ignore_errors=True)
    with capsys.disabled():
        print(f"\n{warm} models of 156M warm, worker {held / 1e9:.2f} GB PSS (page cache included)")
        print(f"first token: median {statistics.median(taken):.3f} s, longest {max(taken):.3f} s")
        print(f"of it, first iteration: median {statistics.median(one.first_s for one in found):.3f} s")
        print(f"page faults of each: {minor / len(taken):.0f}, of a disk {major / len(taken):.1f}")
        print(f"took {time.monotonic() - began_s:.0f} s")
    assert warm == MANY - 1
    assert max(taken) <= 0.3
