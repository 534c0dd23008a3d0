"""Does the terminal UI show what a real daemon does, and stay with it through crashes and restarts?"""

import asyncio
import hashlib
import os
import re
import signal
import threading
from contextlib import AbstractContextManager
from pathlib import Path

from daemon_process import DaemonProcess
from llmhostd_tui.app import Top
from llmhostd_tui.client import DaemonClient
from repeated import repeated
from screen_text import until

from llmhostd.cli.daemon_client import SOCKET_FILE

LONG = {"model": "tiny-llama", "prompt": "On and on", "max_tokens": 200, "ignore_eos": True}


def load(daemon: DaemonProcess) -> AbstractContextManager[None]:
    """Somebody asks again and again, also while no node is up."""

    def ask(over: threading.Event) -> None:
        answer = daemon.http.post("/v1/completions", json=LONG)
        if answer.status_code == 503:
            over.wait(float(answer.headers["retry-after"]))
        else:
            answer.raise_for_status()

    return repeated(ask)


def test_requests_are_seen_from_their_submission_through_a_crash(tiny_models_dir: Path, tmp_path: Path) -> None:
    async def scenario(daemon: DaemonProcess) -> None:
        async with Top(DaemonClient(socket=daemon.state_dir / SOCKET_FILE)).run_test(size=(160, 50)) as pilot:
            await until(pilot, lambda text: "● live" in text)
            await pilot.press("slash", *"-submit", "enter")
            with load(daemon):
                text = await until(pilot, lambda text: "● resident" in text and "/200" in text)
                assert "tiny-llama@cpu0#0" in text
                await until(pilot, lambda text: bool(re.search(r"load +tiny-llama@cpu0#0 ", text)))
                await until(pilot, lambda text: "runs tiny-llama@cpu0#0" in text)
                os.kill(daemon.worker_pids()[0], signal.SIGKILL)
                await until(pilot, lambda text: "node down" in text and "killed from outside" in text)
                await until(pilot, lambda text: "● cpu0" in text and "tiny-llama@cpu0#1" in text)
                await until(pilot, lambda text: "● resident" in text and "/200" in text)
            await until(pilot, lambda text: "Nobody waits for an answer." in text and "100 % SLO met" in text)

    with DaemonProcess(tmp_path / "state", [tiny_models_dir / "tiny-llama"]) as daemon:
        asyncio.run(scenario(daemon))


def test_a_daemon_with_keys_is_watched_with_one(tmp_path: Path) -> None:
    settings = f"[http]\napi_keys = ['{hashlib.sha256(b'sesame').hexdigest()}']\n"

    async def scenario(daemon: DaemonProcess, key: str | None, says: str) -> None:
        async with Top(DaemonClient(daemon.url, key=key)).run_test(size=(160, 40)) as pilot:
            await until(pilot, lambda text: says in text)

    with DaemonProcess(tmp_path / "state", settings=settings) as daemon:
        asyncio.run(scenario(daemon, "sesame", "● live"))
        asyncio.run(scenario(daemon, None, "wants another API key: llmhostd --url URL --key KEY top"))


def test_a_daemon_that_drains_and_starts_again_is_followed(tiny_models_dir: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"

    async def scenario() -> None:
        async with Top(DaemonClient(socket=state / SOCKET_FILE)).run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda text: "No daemon" in text)
            with DaemonProcess(state, [tiny_models_dir / "tiny-llama"]):
                await until(pilot, lambda text: "● live" in text and "No model is loaded." in text)
            await until(pilot, lambda text: "✗ no answer" in text)
            with DaemonProcess(state) as daemon:
                daemon.http.post("/v1/completions", json=LONG | {"max_tokens": 1}).raise_for_status()
                await until(pilot, lambda text: "● live" in text and "tiny-llama@cpu0#0" in text and "submit" in text)

    asyncio.run(scenario())
