"""How right are estimates of start times after ten loads? (ServerlessLLM §6.1; page cache warm and cold, two sizes.)"""

import random
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from box import CACHE, Box, box, checkpoints, store
from first_token import become, first_token_s

from llmhostd.domain.start import StartSeen
from llmhostd.loader.convert import convert
from llmhostd.loader.page_cache import drop
from llmhostd.state.database import open_database
from llmhostd.state.starts import StartTable

PATIENT = "[slo]\nttft_s = 60.0\ntpot_s = 5.0\n"
"""Nobody is refused because the machine is slow."""
MODELS = 3
LARGE = {"layers": 22, "hidden": 2048, "heads": 32, "kv_heads": 4, "intermediate": 5632}
"""1.1B; asked for as often as all the small ones together."""
LEARNED = 10
MEASURED = 120
"""The median of forty moves by two points from run to run."""
ENOUGH = 7
"""Starts that are alike have a median of their own."""


def stores(count: int) -> list[Path]:
    """156M checkpoints that were converted for loading."""
    made = []
    for source in checkpoints(count):
        store = CACHE / f"{source.name}-store"
        if not store.exists():
            convert(source, store)
        made.append(store)
    return made


def start(here: Box, names: Sequence[str], cold: Sequence[Path]) -> list[float]:
    """Ask for models that are not loaded, all at once, some of them from the disk; seconds to their first tokens."""
    for name in names:
        become(here, name, "cold")
    for checkpoint in cold:
        drop(checkpoint)
    with ThreadPoolExecutor(len(names)) as callers:
        return list(callers.map(lambda name: first_token_s(here, name), names))


def seen_by(state_dir: Path) -> list[StartSeen]:
    """Starts that were foretold, the oldest first."""
    with open_database(state_dir) as db:
        keys = {row["hardware_key"] for row in db["starts"].rows}
        return [one for one in StartTable(db).latest(keys) if one.estimated_s is not None]


def test_median_error_after_ten_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = [*stores(MODELS), store(**LARGE)]
    draw, waits = random.Random(4), []
    with box(tmp_path / "state", models, config=PATIENT) as here:
        for one in (models[0], models[-1]):
            first_token_s(here, one.name)
            here.settle()
        done = 0
        while done < LEARNED + MEASURED:
            count = draw.choice([1, 1, 1, 2])
            chosen = list(dict.fromkeys(draw.choices(models, weights=[1] * MODELS + [MODELS], k=count)))
            cold = [one for one in chosen if draw.random() < 0.5]
            waits += start(here, [one.name for one in chosen], cold)
            done += len(chosen)
    starts = [one for one in seen_by(tmp_path / "state") if one.pack_s is not None]
    later = starts[LEARNED:]
    with capsys.disabled():
        print("\n" + "\n".join(map(line, later)))
        print(
            f"median error of the first {LEARNED}: {error(starts[:LEARNED])}, of the {len(later)} after: {error(later)}"
        )
        for name, some in (
            ("156M", [one for one in later if one.layers != LARGE["layers"]]),
            ("1.1B", [one for one in later if one.layers == LARGE["layers"]]),
            ("from memory", [one for one in later if not one.came_from.disk_bytes]),
            ("from the disk", [one for one in later if one.came_from.disk_bytes]),
            ("alone", [one for one in later if one.queue_s < 0.1]),
            ("behind another", [one for one in later if one.queue_s >= 0.1]),
        ):
            print(f"  {name}: {error(some)} of {len(some)}")
        print(f"the same starts, held against the median of those alike: {repeatability(later)}")
        print(f"request to first token over HTTP: median {statistics.median(waits):.2f} s")
    assert statistics.median(one.error for one in later if one.error is not None) <= 0.10


def error(starts: Sequence[StartSeen]) -> str:
    """Median error, for a person."""
    errors = [one.error for one in starts if one.error is not None]
    return f"{statistics.median(errors):.1%}" if errors else "none"


def repeatability(starts: Sequence[StartSeen]) -> str:
    """How far starts of one shape, from one tier, with nobody before or beside them, are from their own median.

    No estimate that knows of a start but what it is can be better.
    """
    alike: dict[tuple[str, bool], list[float]] = {}
    for one in starts:
        if one.queue_s < 0.1 and not one.beside and not one.packed_beside:
            alike.setdefault((one.shape_key, one.came_from.disk_bytes > 0), []).append(one.start_s)
    enough = [some for some in alike.values() if len(some) >= ENOUGH]
    off = [abs(taken - statistics.median(some)) / taken for some in enough for taken in some]
    return f"median {statistics.median(off):.1%} of {len(off)}" if off else "none"


def line(one: StartSeen) -> str:
    """One start."""
    return (
        f"{one.came_from.disk_bytes / 1e6:4.0f} MB from disk, {one.came_from.memory_bytes / 1e6:4.0f} from memory: "
        f"queue {one.queue_s:.2f}, read {one.read_s:.2f}, load {one.load_s:.2f}{' beside' if one.beside else ''}, "
        f"first iteration {one.first_s:.2f}, of it packing {one.pack_s:.2f}: {one.start_s:.2f} s, "
        f"foretold {one.estimated_s:.2f} s, off by {one.error:.1%}"
    )
