"""Does the terminal UI show what a real daemon does, and stay with it through crashes and restarts?"""

import asyncio
import os
import signal
import threading
from pathlib import Path

from daemon_process import DaemonProcess
from llmhostd_tui.app import Top
from llmhostd_tui.client import DaemonClient
from screen_text import until

from llmhostd.cli.daemon_client import SOCKET_FILE

LONG = {"model": "tiny-llama", "prompt": "On and on", "max_tokens": 200, "ignore_eos": True}


def ask_on_and_on(daemon: DaemonProcess, enough: threading.Event) -> None:
    while not enough.is_set():
        daemon.http.post("/v1/completions", json=LONG).raise_for_status()


def test_a_request_is_seen_from_its_submission_through_a_crash(tiny_models_dir: Path, tmp_path: Path) -> None:
    async def scenario(daemon: DaemonProcess) -> None:
        enough = threading.Event()
        asking = asyncio.create_task(asyncio.to_thread(ask_on_and_on, daemon, enough))
        async with Top(DaemonClient(socket=daemon.state_dir / SOCKET_FILE)).run_test(size=(160, 50)) as pilot:
            text = await until(pilot, lambda text: "● resident" in text and "/200" in text)
            assert "tiny-llama@cpu0#0" in text
            assert "no instance of tiny-llama is loaded" in text
            assert "runs tiny-llama@cpu0#0" in text or "measuring tiny-llama" in text
            os.kill(daemon.worker_pids()[0], signal.SIGKILL)
            await until(pilot, lambda text: "node down" in text and "killed from outside" in text)
            await until(pilot, lambda text: "● cpu0" in text and "tiny-llama@cpu0#1" in text and "● resident" in text)
            enough.set()
            await asking
            await until(pilot, lambda text: "Nobody waits for an answer." in text and "100 % SLO met" in text)

    with DaemonProcess(tmp_path / "state", [tiny_models_dir / "tiny-llama"]) as daemon:
        asyncio.run(scenario(daemon))


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
