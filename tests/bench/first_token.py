"""How long does a caller wait for the first token of a model that is in a given state? Seen from outside, over HTTP."""

import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
from box import Box

from llmhostd.domain.events import RequestArrived
from llmhostd.domain.reports import InstanceReported, IterationReported, LoadStages
from llmhostd.loader.store_index import DATA_FILE
from llmhostd.state.journal import Journal

_client = httpx.Client(timeout=120)
"""One for all: to make one takes 20 ms, which are no part of anybody's answer."""
PROMPT = "What is read first, and what is computed while the rest is still being read?"


def first_token_s(here: Box, model: str, max_tokens: int = 4) -> float:
    """Seconds from the request to the first piece of its answer."""
    began_s = time.perf_counter()
    with _asked(here, model, max_tokens) as answer:
        if answer.status_code != 200:
            raise RuntimeError(answer.read().decode())
        said_s = [time.perf_counter() - began_s for line in answer.iter_lines() if line.startswith("data: ")]
    return said_s[0]


def _asked(here: Box, model: str, max_tokens: int) -> AbstractContextManager[httpx.Response]:
    body = {
        "model": model, "prompt": PROMPT, "stream": True, "max_tokens": max_tokens, "temperature": 0,
        "ignore_eos": True,
    }  # fmt: skip
    return _client.stream("POST", here.url + "/v1/completions", json=body)


def become(here: Box, model: str, state: str) -> None:
    """Bring a model into a state: `cold` from any, `warm` from cold."""
    here.ask(f"/api/v1/models/{model}/{'unload' if state == 'cold' else 'load'}")
    until(lambda: _state(here, model) == state)


def until(holds: Callable[[], bool], within_s: float = 60) -> None:
    """Wait for something that can be seen from outside."""
    end_s = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > end_s:
            raise TimeoutError("it did not happen in time")
        time.sleep(0.02)


def _state(here: Box, model: str) -> str:
    found: list[dict[str, Any]] = [one for one in here.get("/api/v1/instances") if one["model"] == model]
    return str(found[0]["state"]) if found else "cold"


def cache(file: Path) -> None:
    """Bring a file into the page cache."""
    subprocess.run(["dd", f"if={file}", "of=/dev/null", "bs=8M"], check=True, stderr=subprocess.DEVNULL)


def evict(*files: Path) -> None:
    """Drop files from the page cache. They must not be mapped anywhere."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def dd_s(file: Path, block: str) -> float:
    """Seconds that dd takes past the page cache."""
    command = ["dd", f"if={file}", "of=/dev/null", f"bs={block}", "iflag=direct"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"})
    found = re.search(r"([0-9.e-]+) s,", done.stderr)
    assert found, done.stderr
    return float(found[1])


def data_file(model: Path) -> Path:
    """The file of a checkpoint that holds its weights."""
    store = model / DATA_FILE
    return store if store.exists() else model / "model.safetensors"


@dataclass
class Asked:
    """One request, from the journal's side."""

    arrived_s: float
    load_s: float = 0.0
    """Of its model, if it was loaded for it."""
    stages: LoadStages | None = None
    first_s: float = 0.0
    """Its first iteration, whatever that packs."""
    rest_s: float = 0.0
    """From its arrival to the end of that: neither load nor iteration."""


def asked(state_dir: Path) -> list[Asked]:
    """What became of every request to a daemon that has ended and served one after the other, in order."""
    journal = Journal(state_dir)
    found: list[Asked] = []
    for start in journal.starts():
        for step in journal.steps(start):
            match step.event:
                case RequestArrived():
                    found.append(Asked(step.now))
                case InstanceReported(stages=LoadStages() as stages, took_s=took_s) if found and not found[-1].first_s:
                    found[-1].load_s, found[-1].stages = took_s, stages
                case IterationReported(rows=rows, duration_s=first_s) if rows and found and not found[-1].first_s:
                    one = found[-1]
                    one.first_s, one.rest_s = first_s, step.now - one.arrived_s - one.load_s - first_s
    journal.close()
    return found


def faults(pids: Sequence[int]) -> tuple[int, int]:
    """Page faults of processes so far: those served from memory, and those that waited for a disk."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(one[7]) for one in fields), sum(int(one[9]) for one in fields)


class Stream:
    """One long answer that is read in the background, with the time of each of its pieces."""

    def __init__(self, here: Box, model: str, max_tokens: int) -> None:
        self.said_s: list[float] = []
        self._request = (here, model, max_tokens)
        self._left = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with _asked(*self._request) as answer:
            for line in answer.iter_lines():
                if self._left:
                    return
                if line.startswith("data: "):
                    self.said_s.append(time.perf_counter())

    def leave(self) -> None:
        """Want no more of it."""
        self._left = True
        self._thread.join()

    def gaps_s(self, begin_s: float, end_s: float) -> list[float]:
        """Times between pieces, of those that came within an interval."""
        said = self.said_s.copy()
        return [later - earlier for earlier, later in pairwise(said) if begin_s <= later <= end_s]

    @property
    def ended(self) -> bool:
        """Whether all of it has come."""
        return not self._thread.is_alive()
