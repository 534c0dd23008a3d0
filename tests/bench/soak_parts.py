"""Callers and troublemakers of a soak: who asks a daemon that is killed again and again, and what became of it?"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

LLMHOSTD = [str(Path(sys.executable).with_name("llmhostd"))]
CHAT = "/v1/chat/completions"
_ROOT = Path("/sys/fs/cgroup")
_V2 = (_ROOT / "cgroup.controllers").exists()
CGROUP = (_ROOT if _V2 else _ROOT / "memory") / "llmhostd-soak"
LIMIT, USAGE = (
    (CGROUP / "memory.max", CGROUP / "memory.current")
    if _V2
    else (CGROUP / "memory.limit_in_bytes", CGROUP / "memory.usage_in_bytes")
)
NO_LIMIT = "max" if _V2 else "-1"


class Host:
    """One daemon after another, on one state and one port."""

    def __init__(self, state: Path, port: int) -> None:
        self.state, self.url = state, f"http://127.0.0.1:{port}"
        self.command = [*LLMHOSTD, "--config", str(state / "llmhostd.toml"), "--state-dir", str(state)]
        self.log = state / "daemon.log"
        self.alive = threading.Event()
        self.kills: Counter[str] = Counter()
        self.in_cgroup = False

    def start(self) -> None:
        """Return once it is ready."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*self.command, "serve"], stdout=log, stderr=log)
        if self.in_cgroup:
            (CGROUP / "cgroup.procs").write_text(str(self.process.pid))
        until(lambda: self.ready(), "the daemon is ready")
        self.alive.set()

    def ready(self) -> bool:
        """Whether it serves."""
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200
        return False

    def restart(self, how: int) -> None:
        """End it by a signal, and start another."""
        self.alive.clear()
        self.process.send_signal(how)
        status = self.process.wait(120)
        assert status == (0 if how == signal.SIGTERM else -how), status
        self.kills[signal.Signals(how).name] += 1
        self.start()

    def worker_pids(self) -> list[int]:
        """The workers that run now."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in children if b"llmhostd.worker" in _read(Path(f"/proc/{pid}/cmdline"))]

    def get(self, path: str) -> Any:
        """JSON of a page."""
        return httpx.get(self.url + path, timeout=60).raise_for_status().json()

    def held(self) -> dict[str, int]:
        """What daemon and workers hold: open files, threads, and memory of their own."""
        found = {"files": 0, "threads": 0, "kib": 0}
        for pid in (self.process.pid, *self.worker_pids()):
            found["files"] += len(list(Path(f"/proc/{pid}/fd").iterdir()))
            found["threads"] += len(list(Path(f"/proc/{pid}/task").iterdir()))
            lines = _read(Path(f"/proc/{pid}/smaps_rollup")).decode().splitlines()
            found["kib"] += sum(int(one.split()[1]) for one in lines if one.startswith("Private_Dirty"))
        return found


class Callers:
    """Asks of all kinds, each of whose answers is known."""

    def __init__(self, host: Host, bodies: list[dict[str, Any]], seed: int) -> None:
        self.host, self.bodies, self.seed = host, bodies, seed
        self.stop = threading.Event()
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.owed: dict[str, tuple[int, str]] = {}
        """Best-effort calls that were accepted and cut off: their questions, and when."""
        self.right: list[str] = [self._undisturbed(body) for body in bodies]
        self._lock = threading.Lock()

    def person(self, number: int) -> None:
        """Ask again and again, and hang up now and then."""
        chance = random.Random(f"{self.seed} {number}")
        while not self.stop.is_set():
            which = chance.randrange(len(self.bodies))
            patience = chance.randrange(60) if chance.random() < 0.2 else 10**9
            self._count("person", self._ask(which, {}, patience))
            time.sleep(chance.uniform(0.0, 0.3))

    def flex(self, number: int) -> None:
        """Ask for work that nobody waits for."""
        chance, calls = random.Random(f"{self.seed} flex {number}"), 0
        while not self.stop.is_set():
            which, calls = chance.randrange(len(self.bodies)), calls + 1
            name = f"flex-{number}-{calls}"
            began = time.strftime("%H:%M:%S")
            outcome = self._ask(which, {"X-Request-Id": name}, 10**9)
            if outcome == "cut off":
                heard = f"from {began} to {time.strftime('%H:%M:%S')}"
                with self._lock:
                    self.owed[name] = which, heard
            self._count("flex", outcome)
            time.sleep(chance.uniform(0.0, 0.3))

    def collect(self) -> None:
        """Wait for every answer that is owed, and look at it."""
        for name, (which, _) in self.owed.items():
            until(lambda name=name: self._kept(name)["done"], f"{name} is done")
            kept = self._kept(name)
            said = kept["answer"]["choices"][0]["message"]["content"] if kept["status"] == 200 else kept["answer"]
            if said != self.right[which]:
                self.wrong.append(f"{name}: {said!r}")

    def _kept(self, name: str) -> dict[str, Any]:
        answer = httpx.get(f"{self.host.url}/api/v1/requests/{name}", timeout=60)
        assert answer.status_code == 200, f"{name} {self.owed[name]} was lost: {answer.text}"
        kept: dict[str, Any] = answer.json()
        return kept

    def _ask(self, which: int, headers: dict[str, str], patience: int) -> str:
        body = self.bodies[which] | {"stream": True} | ({"service_tier": "flex"} if headers else {})
        text, pieces, accepted = "", 0, False
        try:
            with httpx.stream("POST", self.host.url + CHAT, json=body, headers=headers, timeout=300) as answer:
                if answer.status_code != 200:
                    answer.read()
                    return f"refused {answer.status_code}"
                accepted = True
                for line in answer.iter_lines():
                    if line.startswith("data: {"):
                        event = json.loads(line[6:])
                        if "error" in event:
                            message = str(event["error"]["message"])
                            return "cut off" if "the request is kept" in message else f"error: {message[:90]}"
                        text += event["choices"][0]["delta"].get("content") or ""
                        pieces += 1
                        if pieces > patience:
                            return "hung up"
                    elif line == "data: [DONE]":
                        if text != self.right[which]:
                            self.wrong.append(f"{body['model']} {headers}: {text!r}")
                        return "whole"
        except httpx.TransportError:
            return "cut off" if accepted else "not connected"
        return "cut off"

    def _undisturbed(self, body: dict[str, Any]) -> str:
        answer = httpx.post(self.host.url + CHAT, json=body, timeout=300).raise_for_status().json()
        return str(answer["choices"][0]["message"]["content"])

    def _count(self, who: str, outcome: str) -> None:
        with self._lock:
            self.outcomes[f"{who} {outcome}"] += 1
        if outcome in ("not connected", "cut off"):
            self.host.alive.wait(60)
        elif outcome.startswith("refused"):
            time.sleep(0.2)


class Trouble:
    """What goes wrong, and what operators do."""

    def __init__(self, host: Host, extra: Path, seed: int) -> None:
        self.host, self.extra = host, extra
        self.done: Counter[str] = Counter()
        self._chance = random.Random(seed)

    def make(self, *, daemons: bool) -> None:
        """Do one thing."""
        acts: list[Callable[[], None]] = [
            self._kill_worker, self._kill_worker, self._change_models, self._change_models, self._add_by_command,
            self._load_and_unload, self._drain, self._budget,
        ]  # fmt: skip
        if daemons:
            acts += [self._kill_daemon, self._stop_daemon]
        act = self._chance.choice(acts)
        act()
        self.done[act.__name__.lstrip("_")] += 1

    def undo(self) -> None:
        """Leave nothing in the way of the last answers."""
        for node in self.host.get("/api/v1/nodes"):
            httpx.delete(f"{self.host.url}/api/v1/nodes/{node['id']}/drain", timeout=60)
        if self.host.in_cgroup:
            LIMIT.write_text(NO_LIMIT)

    def _kill_worker(self) -> None:
        for pid in self.host.worker_pids()[:1]:
            os.kill(pid, signal.SIGKILL)

    def _kill_daemon(self) -> None:
        self.host.restart(signal.SIGKILL)

    def _stop_daemon(self) -> None:
        self.host.restart(signal.SIGTERM)

    def _change_models(self) -> None:
        name = f"extra-{self._chance.randrange(3)}"
        body = {"name": name, "path": str(self.extra)}
        if httpx.delete(f"{self.host.url}/api/v1/models/{name}", timeout=60).status_code == 404:
            httpx.post(f"{self.host.url}/api/v1/models", json=body, timeout=60).raise_for_status()
            httpx.post(self.host.url + CHAT, json={"model": name, "messages": [], "max_tokens": 3}, timeout=60)

    def _add_by_command(self) -> None:
        """A copy is made and deleted again, now and then by somebody who is killed."""
        adding = [*self.host.command, "models", "add", str(self.extra), "--name", "copied"]
        process = subprocess.Popen(adding, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if self._chance.random() < 0.3:
            time.sleep(self._chance.uniform(0.5, 2.0))
            process.kill()
        process.communicate()
        subprocess.run([*self.host.command, "models", "rm", "copied"], capture_output=True, check=False, timeout=300)

    def _load_and_unload(self) -> None:
        model = self._chance.choice(self.host.get("/api/v1/models"))["name"]
        httpx.post(f"{self.host.url}/api/v1/models/{model}/{self._chance.choice(['load', 'unload'])}", timeout=60)

    def _drain(self) -> None:
        node = self._chance.choice(self.host.get("/api/v1/nodes"))["id"]
        drain = f"{self.host.url}/api/v1/nodes/{node}/drain"
        httpx.post(drain, timeout=60)
        time.sleep(self._chance.uniform(0.1, 2.0))
        httpx.delete(drain, timeout=60)

    def _budget(self) -> None:
        if self.host.in_cgroup:
            used = int(USAGE.read_text())
            more = self._chance.choice([300, 1500, 2500, 4000]) << 20
            LIMIT.write_text(str(used + more))


@contextlib.contextmanager
def cgroup() -> Iterator[bool]:
    """Make a control group of our own where that is allowed."""
    try:
        CGROUP.mkdir(exist_ok=True)
        made = LIMIT.exists()
    except OSError:
        made = False
    yield made
    with contextlib.suppress(OSError):
        CGROUP.rmdir()


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something that must come."""
    end_s = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < end_s, f"it did not come to that: {what}"
        time.sleep(0.1)


def _read(file: Path) -> bytes:
    with contextlib.suppress(OSError):
        return file.read_bytes()
    return b""
