"""How long does a caller wait for the first token of a model that is in a given state? Seen from outside, over HTTP."""

import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
from box import Box

from llmhostd.domain.reports import InstanceReported, LoadStages
from llmhostd.loader.store_index import DATA_FILE
from llmhostd.state.journal import Journal

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
    return httpx.stream("POST", here.url + "/v1/completions", json=body, timeout=120)


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


def loads(state_dir: Path) -> list[tuple[float, LoadStages]]:
    """What the journal of a daemon that has ended says of its loads: seconds, and where they went."""
    journal = Journal(state_dir)
    steps = [step for start in journal.starts() for step in journal.steps(start)]
    journal.close()
    events = [step.event for step in steps if isinstance(step.event, InstanceReported)]
    return [(one.took_s, one.stages) for one in events if one.stages is not None]


class Stream:
    """One long answer that is read in the background, with the time of each of its pieces."""

    def __init__(self, here: Box, model: str, max_tokens: int) -> None:
        self.said_s: list[float] = []
        self._request = (here, model, max_tokens)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with _asked(*self._request) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    self.said_s.append(time.perf_counter())

    def gaps_s(self, begin_s: float, end_s: float) -> list[float]:
        """Times between pieces, of those that came within an interval."""
        said = self.said_s.copy()
        return [later - earlier for earlier, later in pairwise(said) if begin_s <= later <= end_s]

    @property
    def ended(self) -> bool:
        """Whether all of it has come."""
        return not self._thread.is_alive()
