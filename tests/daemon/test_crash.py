"""Does a stream go on, token for token, when its worker is killed under it?"""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from daemon_process import DaemonProcess
from streams import ask

MODELS = ("tiny-llama", "tiny-qwen3")
KILLS = 4


def test_every_stream_ends_with_the_tokens_of_an_undisturbed_run(tmp_path: Path, tiny_models_dir: Path) -> None:
    calls = [(model, number) for number in range(3) for model in MODELS]
    with DaemonProcess(tmp_path / "state", [tiny_models_dir / name for name in MODELS]) as daemon:
        expected = [ask(daemon, *call) for call in calls]
        with ThreadPoolExecutor(len(calls)) as pool:
            for kill in range(KILLS):
                running = [pool.submit(ask, daemon, *call) for call in calls]
                while not any(row["tokens_out"] > 40 * kill for row in daemon.http.get("/api/v1/requests").json()):
                    time.sleep(0.002)
                for pid in daemon.worker_pids():
                    os.kill(pid, signal.SIGKILL)
                assert [one.result() for one in running] == expected
        (node,) = daemon.http.get("/api/v1/nodes").json()
        assert node["restarts"] == KILLS
        assert not [row["because"] for row in daemon.http.get("/api/v1/models").json() if row["because"]]
    assert "Traceback" not in daemon.log
