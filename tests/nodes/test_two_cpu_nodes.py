"""Two CPU nodes of one core each, for real: do requests spread, and do they move as tokens when a node goes?"""

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
from daemon_process import EXACT, PATIENT, DaemonProcess
from decided import Decided
from streams import ask

from llmhostd.devices.probe import spell_cores

CALLS = 5


def two_nodes(more: str = "") -> str:
    cores = sorted(os.sched_getaffinity(0))
    assert len(cores) >= 2, "two nodes need two cores"
    nodes = [f'[[nodes]]\nid = "cpu{n}"\ncores = "{cores[n]}"\nmemory = "512 MiB"\n' for n in (0, 1)]
    return EXACT + PATIENT + more + "".join(nodes)


def rows(daemon: DaemonProcess, what: str) -> list[dict]:
    return daemon.http.get(f"/api/v1/{what}").json()


def homes(daemon: DaemonProcess) -> dict[str, str]:
    """The node of each instance."""
    return {one["id"]: one["node_id"] for one in rows(daemon, "instances")}


def until(holds: Callable[[], object]) -> None:
    end_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.002)


def under_way(daemon: DaemonProcess) -> bool:
    return sum(one["tokens_out"] > 20 for one in rows(daemon, "requests")) == CALLS


def test_models_spread_over_the_nodes_and_each_keeps_to_its_core(tmp_path: Path, tiny_models_dir: Path) -> None:
    models = ["tiny-llama", "tiny-qwen3"]
    settings = two_nodes("[packing]\ninstances_per_node = 1\n")
    with DaemonProcess(tmp_path, [tiny_models_dir / name for name in models], settings=settings) as daemon:
        daemon.await_nodes()
        with ThreadPoolExecutor(4) as pool:
            streams = [pool.submit(ask, daemon, model, number) for model in models for number in (1, 2)]
            assert all(len(one.result()) > 100 for one in streams)
        where = {one["model"]: one["node_id"] for one in rows(daemon, "instances")}
        assert sorted(where) == models
        assert sorted(where.values()) == ["cpu0", "cpu1"]
        cores = [os.sched_getaffinity(pid) for pid in daemon.worker_pids()]
        assert [len(one) for one in cores] == [1, 1]
        assert cores[0] != cores[1]
        specs = rows(daemon, "nodes")
        assert [one["memory_bytes"] for one in specs] == [512 << 20] * 2
    assert "Traceback" not in daemon.log


def test_a_drain_and_a_kill_move_streams_to_the_other_node_token_for_token(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    with DaemonProcess(tmp_path, [tiny_models_dir / "tiny-llama"], settings=two_nodes()) as daemon:
        daemon.await_nodes()
        expected = [ask(daemon, "tiny-llama", number) for number in range(CALLS)]
        with ThreadPoolExecutor(CALLS) as pool:

            def all_calls() -> list[Future[str]]:
                return [pool.submit(ask, daemon, "tiny-llama", number) for number in range(CALLS)]

            (home,) = set(homes(daemon).values())
            other = "cpu1" if home == "cpu0" else "cpu0"
            with Decided(daemon) as decided:
                streams = all_calls()
                until(lambda: under_way(daemon))
                assert daemon.http.post(f"/api/v1/nodes/{home}/drain").status_code == httpx.codes.ACCEPTED
                assert [one.result() for one in streams] == expected
                # They go on where they are until the other node is level with them; a short one may end before that.
                until(lambda: len(decided.places()) == 2 * CALLS)
                assert all(one in ([home], [home, other]) for one in decided.places())
            until(lambda: set(homes(daemon).values()) == {other})
            assert daemon.http.delete(f"/api/v1/nodes/{home}/drain").is_success

            with Decided(daemon) as decided:
                streams = all_calls()
                until(lambda: under_way(daemon))
                kill_worker_of(daemon, other)
                assert [one.result() for one in streams] == expected
                until(lambda: decided.places()[-CALLS:] == [[other, home]] * CALLS)
        restarts = {one["id"]: one["restarts"] for one in rows(daemon, "nodes")}
        assert restarts == {home: 0, other: 1}
    assert "Traceback" not in daemon.log


def kill_worker_of(daemon: DaemonProcess, node: str) -> None:
    """As the operator's `kill -9` would."""
    (core,) = next(one["cores"] for one in rows(daemon, "nodes") if one["id"] == node)
    (pid,) = [pid for pid in daemon.worker_pids() if os.sched_getaffinity(pid) == {core}]
    os.kill(pid, signal.SIGKILL)


def test_cores_that_no_node_has_are_said_to_whoever_asks(tmp_path: Path) -> None:
    first, *others = sorted(os.sched_getaffinity(0))
    with DaemonProcess(tmp_path, settings=f'[[nodes]]\nid = "a"\ncores = "{first}"\nmemory = "256 MiB"\n') as daemon:
        assert daemon.http.get("/readyz").status_code == httpx.codes.OK
        left_out = daemon.http.get("/api/v1/host").json()["left_out"]
        assert left_out == [f"CPU cores {spell_cores(others)}: no [[nodes]] name them"]
    assert "left out: no [[nodes]] name them" in daemon.log
