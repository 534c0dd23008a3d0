"""Does the daemon work beside the threads that run iterations, and never keep its workers from a core?"""

import os
import signal
import time
from pathlib import Path

import pytest
from daemon_process import DaemonProcess

from llmhostd.daemon.node_cores import cores_of_daemon
from llmhostd.domain.hardware import NodeKind, NodeSpec
from llmhostd.domain.ids import HardwareKey, NodeId


def node(*cores: int, kind: NodeKind = NodeKind.CPU) -> NodeSpec:
    return NodeSpec(
        id=NodeId("n"), engine="profiled", hardware_key=HardwareKey("here"), kind=kind, cores=cores, memory_bytes=1
    )


@pytest.mark.parametrize(
    ("nodes", "left"),
    [
        ([node(0, 1)], {1, 2, 3}),
        ([node(0, 1), node(2, 3)], {1, 3}),
        ([node(0), node(1), node(2), node(3)], {0, 1, 2, 3}),
        ([node(0, 1, 2, 3, kind=NodeKind.GPU)], {0, 1, 2, 3}),
        ([node(2, 3), node(0, 1, kind=NodeKind.GPU)], {0, 1, 3}),
    ],
)
def test_it_leaves_the_first_core_of_each_cpu_node_if_another_is_left(nodes: list[NodeSpec], left: set[int]) -> None:
    assert cores_of_daemon(nodes, range(4)) == left


def test_a_worker_has_all_its_cores_also_when_it_is_started_again(tmp_path: Path) -> None:
    everywhere = os.sched_getaffinity(0)
    with DaemonProcess(tmp_path / "state") as daemon:
        (worker,) = daemon.worker_pids()
        assert os.sched_getaffinity(daemon.process.pid) == cores_of_daemon([node(*sorted(everywhere))], everywhere)
        assert os.sched_getaffinity(worker) == everywhere
        os.kill(worker, signal.SIGKILL)
        end = time.monotonic() + 30
        while daemon.worker_pids() in ([], [worker]) or not daemon.http.get("/api/v1/nodes").json()[0]["up"]:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert os.sched_getaffinity(daemon.worker_pids()[0]) == everywhere
