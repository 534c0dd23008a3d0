"""What does a service manager's socket hear?"""

import os
import socket
from pathlib import Path

import pytest

from llmhostd.daemon.systemd import Notifier


@pytest.mark.parametrize("abstract", [False, True])
def test_each_call_is_one_datagram(tmp_path: Path, abstract: bool) -> None:
    address = f"\0llmhostd-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(5)
        notifier = Notifier({"NOTIFY_SOCKET": address.replace("\0", "@"), "WATCHDOG_USEC": "200000"})
        notifier.ready("serving on a, b")
        notifier.alive()
        notifier.stopping()
        notifier.extend(1.5)
        heard = [manager.recv(4096).decode() for _ in range(4)]
    assert heard == [
        "READY=1\nSTATUS=serving on a, b", "WATCHDOG=1", "STOPPING=1\nSTATUS=draining", "EXTEND_TIMEOUT_USEC=1500000",
    ]  # fmt: skip


def test_a_manager_that_does_not_listen_holds_nobody_up_and_hears_all_that_matters(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    notifier = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000"})
    notifier.ready("early")  # it is not even there
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(30)
        for _ in range(100):  # more than its queue takes
            notifier.alive()
        notifier.stopping()
        heard: list[str] = []
        while not heard or not heard[-1].startswith("STOPPING=1"):
            heard.append(manager.recv(4096).decode())
            notifier.alive()
    assert heard[0] == "READY=1\nSTATUS=early"
    assert set(heard[1:-1]) == {"WATCHDOG=1"}


def test_without_systemd_nothing_happens() -> None:
    notifier = Notifier({})
    notifier.ready("x")
    assert (notifier.watchdog_s, notifier.period_s) == (0.0, 0.0)


def test_watchdog_is_ours_only_if_the_pid_is() -> None:
    assert Notifier({"WATCHDOG_USEC": "2000000"}).watchdog_s == 2.0
    assert Notifier({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())}).watchdog_s == 2.0
    assert Notifier({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}).watchdog_s == 0.0
