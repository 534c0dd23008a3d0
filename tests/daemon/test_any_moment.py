"""Whatever moment ends the daemon: is everything there that was promised, and does the next one go on with it?"""

import os
import signal
import time
from pathlib import Path

import httpx
from daemon_process import DaemonProcess
from moment_histories import BODIES, SETTINGS, live_and_die_often, loaded, until
from moments import Callers, copy_state, look_into


def test_any_moment_may_be_the_last(tmp_path: Path, tiny_models_dir: Path) -> None:
    live_and_die_often(tmp_path, tiny_models_dir, seed=1, moments=30, next_runs=2)


def test_what_was_warm_on_a_daemon_that_was_stopped_is_loaded_again_before_anybody_asks(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    state, names = tmp_path / "state", ("tiny-llama", "tiny-qwen3", "tiny-mistral")
    with DaemonProcess(state, [tiny_models_dir / name for name in names], settings=SETTINGS) as daemon:
        daemon.http.post("/v1/chat/completions", json=BODIES[0] | {"max_tokens": 2}).raise_for_status()
        daemon.http.post("/api/v1/models/tiny-qwen3/load").raise_for_status()
        until(lambda: {one["model"] for one in loaded(daemon)} == {"tiny-llama", "tiny-qwen3"})
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.wait() == 0
    with DaemonProcess(state, settings=SETTINGS) as daemon:
        host = daemon.http.get("/api/v1/host").json()
        assert (host["last_run"], host["returned"].split(":")[0]) == ("", "2 models are loaded again")
        until(lambda: {one["model"] for one in loaded(daemon)} == {"tiny-llama", "tiny-qwen3"})
    with DaemonProcess(state, settings=f"{SETTINGS}load_again = false\n") as daemon:
        assert daemon.http.get("/api/v1/host").json()["returned"] == ""
        assert loaded(daemon) == []


def test_what_ends_the_daemon_again_and_again_is_not_loaded_again(tmp_path: Path, tiny_models_dir: Path) -> None:
    state = tmp_path / "state"
    with DaemonProcess(state, [tiny_models_dir / "tiny-llama"], settings=SETTINGS) as daemon:
        daemon.http.post("/api/v1/models/tiny-llama/load").raise_for_status()
        until(lambda: loaded(daemon))
        until(lambda: look_into_live(daemon))
        os.kill(daemon.process.pid, signal.SIGKILL)
        daemon.wait()
    for run in range(3):
        with DaemonProcess(state, settings=SETTINGS) as daemon:
            returned = daemon.http.get("/api/v1/host").json()["returned"]
            if run < 2:
                assert returned == "1 model is loaded again: tiny-llama"
            else:
                assert returned == "nothing is loaded again before it is asked for: 3 runs in a row ended at once"
            os.kill(daemon.process.pid, signal.SIGKILL)
            daemon.wait()


def look_into_live(daemon: DaemonProcess) -> bool:
    """Whether its placements are on disk."""
    copy = daemon.state_dir.with_name(f"live-{time.monotonic_ns()}")
    copy_state(daemon.state_dir, copy)
    return bool(look_into(copy).placements)


def test_a_stream_that_a_stop_cut_off_is_counted(tmp_path: Path, tiny_models_dir: Path) -> None:
    state, settings = tmp_path / "state", f"{SETTINGS}drain_timeout_s = 0.0\n[supervision]\nstop_timeout_s = 0.2\n"
    with DaemonProcess(state, [tiny_models_dir / "tiny-llama"], settings=settings) as daemon:
        daemon.http.post("/v1/chat/completions", json=BODIES[0] | {"max_tokens": 2}).raise_for_status()
        callers = Callers(daemon)
        caller = callers.ask("person", BODIES[0])
        while not caller.chunks:
            callers.listen(0.002)
        for pid in daemon.worker_pids():
            os.kill(pid, signal.SIGSTOP)
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.wait() == 0
        callers.close()
    with DaemonProcess(state, settings=settings) as daemon:
        said = "1 stream of people outlived the drain of the last run and ended with it"
        assert daemon.http.get("/api/v1/host").json()["last_run"] == said
        with httpx.stream("GET", f"{daemon.url}/api/v1/events") as events:
            first = next(line for line in events.iter_lines() if line.startswith("data: "))
        assert said in first
