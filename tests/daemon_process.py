"""A real daemon in its own process, for tests of every face it has."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import httpx
import openai

from llmhostd.api.service import ModelRegistration
from llmhostd.daemon.registration import examine
from llmhostd.state.database import open_database
from llmhostd.state.models import ModelTable

EXACT = '[precision]\ncompute = "f32"\nkv = "f32"\n'
"""Settings under which greedy tokens are the same in every batch."""
PATIENT = "[slo]\nttft_s = 60.0\ntpot_s = 5.0\n"
"""Promises that a busy machine keeps, too."""

COMMAND = [sys.executable, "-c", "from llmhostd.cli import main; main()"]
_SERVING = re.compile(r"serving \d+ models on (http://\S+)")


class DaemonProcess:
    """`llmhostd serve` on a free port. Use as a context manager."""

    def __init__(
        self,
        state_dir: Path,
        models: Iterable[Path] = (),
        *,
        settings: str = EXACT + PATIENT,
        environ: dict[str, str] | None = None,
    ) -> None:
        self.state_dir = state_dir
        state_dir.mkdir(parents=True, exist_ok=True)
        register(state_dir, models)
        self._config = state_dir / "llmhostd.toml"
        self._config.write_text(settings)
        self._environ = os.environ | (environ or {})
        self._lines: list[str] = []
        self._ready = threading.Event()
        self.url = ""

    def __enter__(self) -> "DaemonProcess":
        self.process = subprocess.Popen(
            [*COMMAND, "--config", str(self._config), "--state-dir", str(self.state_dir), "serve", "--port", "0"],
            stderr=subprocess.PIPE, text=True, env=self._environ,
        )  # fmt: skip
        assert self.process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stderr,), daemon=True)
        self._reader.start()
        if not self._ready.wait(60) or not self.url:
            self.process.kill()
            raise AssertionError(f"it does not serve: {self.log}")
        self.http = httpx.Client(base_url=self.url, timeout=60)
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGINT)  # hurry
        self.wait()

    @property
    def log(self) -> str:
        """All that it said."""
        return "".join(self._lines)

    @property
    def openai(self) -> openai.OpenAI:
        """The official client."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def worker_pids(self) -> list[int]:
        """The workers that run now."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in children if b"llmhostd.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def await_nodes(self) -> None:
        """Wait until all of its nodes are up. It serves as soon as one of them is."""
        deadline_s = time.monotonic() + 60
        while not all(node["up"] for node in self.http.get("/api/v1/nodes").json()):
            assert time.monotonic() < deadline_s, self.log
            time.sleep(0.01)

    def wait(self, timeout_s: float = 60) -> int:
        """Wait for its end."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self._reader.join()
        return status

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._lines.append(line)
            if found := _SERVING.search(line):
                self.url = found[1]
                self._ready.set()
        self._ready.set()


def register(state_dir: Path, models: Iterable[Path]) -> None:
    """Add checkpoints under their directories' names, as `models add` does without a daemon."""
    with open_database(state_dir) as db:
        for path in models:
            ModelTable(db).put(examine(ModelRegistration(name=path.name, path=str(path))))
