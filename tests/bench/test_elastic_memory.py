"""Twelve models that do not fit at once, two CPU nodes, a bursty half hour played faster: does memory follow the load?

The same trace is served by llmhostd and by the daemon with the two baselines of SLINFER §IX-A, one after the other. The
figure shows budget, promised, held and used bytes of every node over time.
"""

import csv
import gzip
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from box import Box, box, checkpoints, load
from matplotlib.figure import Figure

from llmhostd.host import invariants
from llmhostd.host.core import HostMind
from llmhostd.state.journal import Journal

TRACE = Path(__file__).resolve().parents[3] / "shared" / "data" / "azfunc128_regen_seed0.csv.gz"
OUT = Path(os.environ.get("LLMHOSTD_BENCH_OUT", "."))
SPEED = float(os.environ.get("LLMHOSTD_BENCH_SPEED", "6"))
SECONDS = float(os.environ.get("LLMHOSTD_BENCH_TRACE_SECONDS", "1800"))
SHORTER = 5
"""Prompts and answers are this many times shorter than in the trace: one core is not a GPU."""
SIZES: tuple[dict[str, int], ...] = (
    *({"layers": 6, "hidden": 512, "heads": 8, "kv_heads": 4, "intermediate": 1408},) * 5,
    *({},) * 5,
    *({"layers": 12},) * 2,
)
"""42M, 156M and 202M parameters: 2.8 GB of weights in bf16."""
NODE_MIB = 800
LOST_SLO = ("--slo-ttft", "2.0", "--slo-tpot", "0.2")


def models() -> list[Path]:
    """Twelve checkpoints of three sizes; the popular ones of the trace are of all sizes."""
    made: list[Path] = []
    for size in (SIZES[0], SIZES[5], SIZES[10]):
        made += checkpoints(sum(each == size for each in SIZES), **size)
    return [made[place] for place in (5, 0, 10, 1, 6, 2, 7, 3, 11, 4, 8, 9)]


def config() -> str:
    """Two nodes of one core each."""
    nodes = (f'[[nodes]]\nid = "cpu{at}"\ncores = "{at}"\nmemory = "{NODE_MIB} MiB"\n' for at in (0, 1))
    return "\n".join(nodes)


def trace(path: Path) -> None:
    """Every eighth model of the trace, twelve in all, shortened; without the trace nothing can be measured."""
    if not TRACE.exists():
        pytest.skip(f"{TRACE} is not there")
    with gzip.open(TRACE, "rt") as file, path.open("w", newline="") as out:
        rows = csv.DictReader(file)
        writer = csv.writer(out)
        writer.writerow(("arrival_s", "model_id", "input_tokens", "output_tokens"))
        for row in rows:
            model = int(row["model_id"])
            if model % 8 == 0 and model // 8 < len(SIZES):
                lengths = (max(int(row[key]) // SHORTER, 4) for key in ("input_tokens", "output_tokens"))
                writer.writerow((row["arrival_s"], model // 8, *lengths))


@contextmanager
def watched(target: Box, samples: list[dict[str, Any]]) -> Iterator[None]:
    """Sample the nodes twice a second."""
    over = threading.Event()
    began = time.monotonic()

    def watch() -> None:
        while not over.wait(0.5):
            samples.extend({"at_s": time.monotonic() - began, **node} for node in target.get("/api/v1/nodes"))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def invariants_hold(state_dir: Path) -> int:
    """Decide everything again from the journal, looking at every invariant after every step; returns the steps."""
    journal = Journal(state_dir)
    start = journal.starts()[-1]
    mind = HostMind(start.made_with.nodes, start.made_with.policies)
    steps = 0
    for step in journal.steps(start):
        steps += 1
        mind.step(step.event, step.now)
        invariants.check(mind)
    journal.close()
    return steps


def draw(samples: list[dict[str, Any]], file: Path) -> None:
    figure = Figure(figsize=(11, 6), layout="constrained")
    names = sorted({each["id"] for each in samples})
    for axes, name in zip(figure.subplots(len(names), 1, sharex=True), names, strict=True):
        mine = [each for each in samples if each["id"] == name]
        at_s = [each["at_s"] for each in mine]
        for key, look in (
            ("budget_bytes", "k--"),
            ("promised_bytes", "C1"),
            ("held_bytes", "C0"),
            ("used_bytes", "C2"),
        ):
            axes.plot(at_s, [each[key] / 2**20 for each in mine], look, label=key.removesuffix("_bytes"), lw=1.1)
        axes.set_ylabel(f"{name}, MiB")
        axes.set_ylim(0)
        axes.grid(alpha=0.3)
    axes.legend(ncols=4, loc="lower right")
    axes.set_xlabel("seconds")
    figure.savefig(file, dpi=110)


def test_twelve_models_on_two_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, made = tmp_path / "state", models()
    names = [path.name for path in made]
    trace(tmp_path / "trace.csv")
    played = ("--trace", str(tmp_path / "trace.csv"), "--speed", str(SPEED), "--duration", str(SECONDS), *LOST_SLO)
    with box(state, made, config=config(), serve=("--profile-at-start",)) as here:
        here.settle(within_s=900)
    rows, samples = [], list[dict[str, Any]]()
    with box(state, config=config()) as here, watched(here, samples):
        rows.append(("llmhostd", load(here, names, tmp_path / "ours.json", "--no-warmup", *played)))
        scaling = {node["id"]: node["scaling_s"] for node in here.get("/api/v1/nodes")}
        restarts = sum(node["restarts"] for node in here.get("/api/v1/nodes"))
        lived_s = samples[-1]["at_s"]
    steps = invariants_hold(state)
    draw(samples, OUT / "elastic-memory.png")
    for name, width, limit in (("exclusive swap", 2, 16), ("static halves", 1, 8)):
        program = (str(Path(__file__).with_name("baseline_daemon.py")), str(width), str(limit))
        with box(state, config=config(), program=program) as here:
            rows.append((name, load(here, names, tmp_path / f"{width}.json", "--no-warmup", *played)))
    held = max((each["used_bytes"] - each["budget_bytes"]) / 2**20 for each in samples)
    with capsys.disabled():
        print(f"\n{rows[0][1]['requests']} requests in {SECONDS / SPEED:.0f} s over {len(names)} models")
        for name, got in rows:
            print(
                f"{name:15} SLO attainment {got['attainment']:.1%}, refused {got['refused']}, errors {got['errors']},"
                f" lost {got['lost']}; TTFT {percentiles(got['ttft'])}; longest gap {percentiles(got['longest_gap'])}"
            )
        shares = ", ".join(f"{node} {seconds / lived_s:.2%}" for node, seconds in scaling.items())
        print(
            f"llmhostd: {steps} steps of the mind, every invariant after each; worker restarts {restarts}; used memory"
            f" at most {held:+.0f} MiB against the budget; KV scaling takes {shares} of the time"
        )


def percentiles(distribution: dict[str, Any]) -> str:
    return f"p50/p99 {distribution['p50']:.2f}/{distribution['p99']:.2f} s"
