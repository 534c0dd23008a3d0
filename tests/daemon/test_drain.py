"""Does a stream go on, token for token, when its node is drained under it, or an operator moves it?"""

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from daemon_process import EXACT, PATIENT, DaemonProcess
from streams import ask
from typed_commands import llmhostd, refused

TWO_NODES = '[[nodes]]\nid = "cpu0"\ncores = "0"\n[[nodes]]\nid = "cpu1"\ncores = "1"\n'
NAMES = ("tiny-llama", "tiny-qwen3")
CALLS = [(model, number) for number in range(2) for model in NAMES]
AT_ONCE = 4
NOTHING = "tiny-llama: nothing of it runs elsewhere than on cpu1\n"
BOTH_WAYS = [("cpu0", "cpu1"), ("cpu1", "cpu0")]


def there(daemon: DaemonProcess, node: str) -> list[str]:
    """Requests that a node runs."""
    rows = daemon.http.get("/api/v1/requests").json()
    return [row["id"] for row in rows if row["instance_id"] and f"@{node}#" in row["instance_id"]]


def until(holds: Callable[[], object]) -> None:
    patience_s = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < patience_s
        time.sleep(0.005)


def drain(daemon: DaemonProcess, node: str) -> None:
    assert daemon.http.post(f"/api/v1/nodes/{node}/drain").status_code < 300


def end_drain(daemon: DaemonProcess, node: str) -> None:
    assert daemon.http.delete(f"/api/v1/nodes/{node}/drain").status_code < 300


def load_everywhere(daemon: DaemonProcess) -> list[str]:
    """Have all models on both nodes; returns what is said where nothing moves."""
    daemon.await_nodes()
    expected = []
    for other in ("cpu1", "cpu0"):
        drain(daemon, other)
        expected = [ask(daemon, *call) for call in CALLS]
        end_drain(daemon, other)
    return expected


def switches(daemon: DaemonProcess) -> int:
    """Streams that went on elsewhere once it had caught up."""
    return len(re.findall(r"RecallRequest .* tokens behind after \d+ rounds", daemon.log))


def rounds_until_one_switched(daemon: DaemonProcess) -> Iterator[None]:
    """Go on until a stream went on elsewhere once it had caught up: many end before, on a machine that is slow."""
    patience_s = time.monotonic() + 120
    while not switches(daemon):
        assert time.monotonic() < patience_s
        yield


def served(tmp_path: Path, tiny_models_dir: Path) -> DaemonProcess:
    return DaemonProcess(
        tmp_path / "state", [tiny_models_dir / name for name in NAMES], settings=EXACT + PATIENT + TWO_NODES
    )


def test_nobody_notices_that_their_node_is_drained(tmp_path: Path, tiny_models_dir: Path) -> None:
    with served(tmp_path, tiny_models_dir) as daemon:
        expected = load_everywhere(daemon)
        for _ in rounds_until_one_switched(daemon):
            with ThreadPoolExecutor(AT_ONCE) as pool:
                running = [pool.submit(ask, daemon, *call) for call in CALLS * 2]
                while not all(one.done() for one in running):
                    for node, other in BOTH_WAYS:
                        end_drain(daemon, other)
                        drain(daemon, node)
                        drained = {row["id"]: row["draining"] for row in daemon.http.get("/api/v1/nodes").json()}
                        assert drained == {node: True, other: False}
                        until(lambda node=node: not there(daemon, node))
                assert [one.result() for one in running] == expected * 2
        assert not [row for row in daemon.http.get("/api/v1/nodes").json() if row["restarts"]]
    assert "Traceback" not in daemon.log


def test_an_operator_moves_what_runs(tmp_path: Path, tiny_models_dir: Path) -> None:
    with served(tmp_path, tiny_models_dir) as daemon:
        expected = load_everywhere(daemon)
        for _ in rounds_until_one_switched(daemon):
            with ThreadPoolExecutor(AT_ONCE) as pool:
                running: list[Future[str]] = [pool.submit(ask, daemon, *call) for call in CALLS * 2]
                while not all(one.done() for one in running):
                    for node, other in BOTH_WAYS:
                        for request_id in there(daemon, node):
                            answer = daemon.http.post(f"/api/v1/requests/{request_id}/move", json={"node": other})
                            assert answer.status_code in (202, 404), answer.text  # it may have ended meanwhile
                        for name in NAMES:
                            answer = daemon.http.post(f"/api/v1/models/{name}/move", json={"node": node})
                            assert answer.status_code == 202, answer.text
                            goes, stays = answer.json()["goes"], answer.json()["stays"]
                            assert all(one["because"] for one in stays)
                            assert not {one["id"] for one in stays} & set(goes)
                        time.sleep(0.02)
                assert [one.result() for one in running] == expected * 2
        missing = daemon.http.post("/api/v1/requests/req-0/move", json={"node": "cpu0"})
        assert missing.status_code == 404
        elsewhere = daemon.http.post("/api/v1/models/tiny-llama/move", json={"node": "cpu7"})
        assert "did you mean" in elsewhere.json()["error"]["message"]
        assert daemon.http.post("/api/v1/models/tiny-llama/move", json={"to": "cpu0"}).status_code == 400
        here = ("--state-dir", daemon.state_dir, "move")
        with ThreadPoolExecutor(1) as pool:
            running = [pool.submit(ask, daemon, *CALLS[0])]
            until(lambda: there(daemon, "cpu0") or there(daemon, "cpu1"))
            typed = llmhostd(*here, "tiny-llama", "cpu1")
            went = re.fullmatch(r"req-\d+: goes to cpu1; `llmhostd ps` shows it\n", typed.stdout)
            assert (typed.returncode, bool(went) or typed.stdout) in ((0, True), (0, NOTHING))
            assert running[0].result() == expected[0]
        typed = llmhostd(*here, "tiny-llama", "cpu1")
        assert (typed.returncode, typed.stdout) == (0, NOTHING)
        assert "did you mean 'tiny-llama'?" in refused(*here, "tiny-lama", "cpu0", status=2)
        assert "did you mean 'cpu1'?" in refused(*here, "tiny-llama", "cpu2", status=2)
    assert "Traceback" not in daemon.log
