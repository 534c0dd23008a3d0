"""A real daemon on a free port with real checkpoints, for measuring it from outside."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from llmhostd.demo.corpus import library_text, reference_text
from llmhostd.demo.noise import make_checkpoint, noise_architecture
from llmhostd.demo.vocabulary import train_tokenizer
from llmhostd.domain.model import WeightFormat
from llmhostd.loader.convert import convert

CACHE = Path(__file__).resolve().parents[2] / ".bench"
"""Checkpoints are made once and kept; `make clean` removes them."""
LLMHOSTD = [str(Path(sys.executable).with_name("llmhostd"))]


def checkpoints(count: int, weights: WeightFormat = WeightFormat.BF16, **sizes: int) -> list[Path]:
    """`count` seeded Llama-shaped checkpoints, 156M parameters each unless `sizes` say otherwise."""
    label = "-".join(f"{key}{value}" for key, value in sorted(sizes.items())) or "156m"
    made = []
    for seed in range(count):
        directory = CACHE / f"{label}-{weights}-{seed}"
        if not (directory / "done").exists():
            make_checkpoint(
                directory,
                noise_architecture("llama", **sizes),
                seed=seed,
                weights=weights,
                tokenizer=train_tokenizer((reference_text(), *library_text(1 << 23)), sizes.get("vocab", 32000)),
            )
            (directory / "done").touch()
        made.append(directory)
    return made


def store(**sizes: int) -> Path:
    """A seeded checkpoint that was converted for loading, as `models add` does."""
    (source,) = checkpoints(1, **sizes)
    made = CACHE / f"{source.name}-store"
    if not made.exists():
        convert(source, made)
    return made


class Box:
    """One daemon under measurement."""

    def __init__(self, state_dir: Path, port: int, process: subprocess.Popen[bytes], ready_s: float) -> None:
        self.state_dir, self.port, self.process, self.ready_s = state_dir, port, process, ready_s
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> Any:
        """JSON of one admin page."""
        return httpx.get(self.url + path, timeout=60).raise_for_status().json()

    def ask(self, path: str) -> None:
        """Ask for something on an admin page."""
        httpx.post(self.url + path, timeout=60).raise_for_status()

    def worker_pids(self) -> list[int]:
        """Process ids of the workers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [pid for pid in map(int, children) if b"llmhostd.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def settle(self, within_s: float = 300) -> None:
        """Wait until nothing is being measured any more: samples of a profile run when nobody waits."""
        end, quiet = time.monotonic() + within_s, 0
        while quiet < 4:
            if time.monotonic() > end:
                raise TimeoutError("profiles were not measured in time")
            time.sleep(0.5)
            quiet = 0 if any(node["profiling"] for node in self.get("/api/v1/nodes")) else quiet + 1


@contextmanager
def box(
    state_dir: Path,
    models: Sequence[Path] = (),
    *add: str,
    config: str = "",
    serve: Sequence[str] = (),
    program: Sequence[str] = (),
) -> Iterator[Box]:
    """Register `models` (named by their directories) and run a daemon on them.

    `program`: a script, and what it is given behind the settings file and the state directory, instead of `serve`.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (state_dir / "llmhostd.toml").write_text(f"[http]\nport = {port}\n{config}")
    command = [*LLMHOSTD, "--config", str(state_dir / "llmhostd.toml"), "--state-dir", str(state_dir)]
    for path in models:
        subprocess.run(
            [*command, "models", "add", str(path), "--in-place", *add], check=True, stdout=subprocess.DEVNULL
        )
    began = time.monotonic()
    with (state_dir / "daemon.log").open("wb") as log:
        run = [*command, "serve", *serve]
        if program:
            run = [sys.executable, program[0], str(state_dir / "llmhostd.toml"), str(state_dir), *program[1:]]
        process = subprocess.Popen(run, stdout=log, stderr=log)
    try:
        yield Box(state_dir, port, process, _wait_ready(process, port, began, state_dir))
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], port: int, began: float, state_dir: Path) -> float:
    while time.monotonic() < began + 60:
        if process.poll() is not None:
            break
        try:
            if httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=1).status_code == 200:
                return time.monotonic() - began
        except httpx.TransportError:
            pass
        time.sleep(0.01)
    raise RuntimeError(f"the daemon did not become ready:\n{(state_dir / 'daemon.log').read_text()[-2000:]}")


def load(target: Box, names: Sequence[str], out: Path, *options: str) -> dict[str, Any]:
    """Run `llmhostd bench` against it; returns the summary."""
    chosen = [part for name in names for part in ("--model", name)]
    command = [*LLMHOSTD, "bench", target.url, *chosen, "--ignore-eos", "--json", str(out), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"COLUMNS": "120"})
    summary: dict[str, Any] = json.loads(out.read_text())["summary"]
    return summary
