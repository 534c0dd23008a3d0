"""Does a stream go on, token for token, when its node is drained under it?"""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from daemon_process import EXACT, PATIENT, DaemonProcess
from streams import ask

TWO_NODES = '[[nodes]]\nid = "cpu0"\ncores = "0"\n[[nodes]]\nid = "cpu1"\ncores = "1"\n'
CALLS = [(model, number) for number in range(2) for model in ("tiny-llama", "tiny-qwen3")]


def moves(daemon: DaemonProcess) -> int:
    return sum(row["moves"] for row in daemon.http.get("/api/v1/requests").json())


def test_nobody_notices_that_their_node_is_drained(tmp_path: Path, tiny_models_dir: Path) -> None:
    models = [tiny_models_dir / name for name in ("tiny-llama", "tiny-qwen3")]
    with DaemonProcess(tmp_path / "state", models, settings=EXACT + PATIENT + TWO_NODES) as daemon:
        expected = [ask(daemon, *call) for call in CALLS]
        with ThreadPoolExecutor(len(CALLS)) as pool:
            running = [pool.submit(ask, daemon, *call) for call in CALLS]
            most = 0
            for name, other in [("cpu0", "cpu1"), ("cpu1", "cpu0")] * 3:
                assert daemon.http.delete(f"/api/v1/nodes/{other}/drain").status_code < 300
                assert daemon.http.post(f"/api/v1/nodes/{name}/drain").status_code < 300
                drained = {row["id"]: row["draining"] for row in daemon.http.get("/api/v1/nodes").json()}
                assert drained == {name: True, other: False}
                until_s = time.monotonic() + 0.15
                while time.monotonic() < until_s:
                    most = max(most, moves(daemon))
            assert [one.result() for one in running] == expected
        assert most >= len(CALLS), "each moved at least once"
        assert not [row for row in daemon.http.get("/api/v1/nodes").json() if row["restarts"]]
    assert "Traceback" not in daemon.log
