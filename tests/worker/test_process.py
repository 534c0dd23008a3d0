"""How a worker process begins and ends, seen from outside: raw sockets, no supervisor."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from box import load_frame, start_frame
from reference_engine import write_checkpoint

from llmhostd.domain.reports import InstanceReported, NodeUp
from llmhostd.engines.crash_note import create_crash_note
from llmhostd.engines.frames import ShutdownFrame, UpFrame, encode_frame, up_reader


class Raw:
    """A worker at the other end of a socket."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(30)
        self.note, note_fd = create_crash_note()
        self.reader = up_reader()
        command = [sys.executable, "-m", "llmhostd.worker", str(theirs.fileno()), str(note_fd), str(os.getpid())]
        self.process = subprocess.Popen(command, pass_fds=(theirs.fileno(), note_fd), stderr=subprocess.PIPE)
        theirs.close()
        os.close(note_fd)

    def receive(self) -> UpFrame:
        while (message := self.reader.next_message()) is None:
            data = self.socket.recv(1 << 16)
            assert data, "the worker closed the socket"
            self.reader.feed(data)
        return message

    def next(self, kind: type) -> UpFrame:
        while not isinstance(message := self.receive(), kind):
            pass
        return message


@pytest.fixture
def worker(reference_plugin: None):
    raw = Raw()
    yield raw
    raw.process.kill()
    raw.process.communicate()
    raw.socket.close()
    raw.note.close()


def test_it_ends_in_silence_when_it_is_told_to_before_it_began(worker: Raw) -> None:
    worker.socket.sendall(encode_frame(start_frame()) + encode_frame(ShutdownFrame()))
    assert worker.process.wait(30) == 0
    assert worker.process.stderr is not None
    assert worker.process.stderr.read() == b""


def test_it_computes_on_its_cores_only(worker: Raw) -> None:
    core = max(os.sched_getaffinity(0))
    worker.socket.sendall(encode_frame(start_frame(cores=(core,))))
    assert isinstance(worker.receive(), NodeUp)
    assert os.sched_getaffinity(worker.process.pid) == {core}


def test_a_frame_that_is_no_message_is_noted_and_left_out(worker: Raw, tmp_path: Path) -> None:
    worker.socket.sendall(encode_frame(start_frame()))
    assert isinstance(worker.receive(), NodeUp)
    worker.socket.sendall(b"\0\0\0\3abc" + encode_frame(load_frame("m", write_checkpoint(tmp_path / "m", seed=1))))
    assert worker.next(InstanceReported).instance_id == "m"
    worker.socket.sendall(encode_frame(ShutdownFrame()))
    _, log = worker.process.communicate(timeout=30)
    assert b"a frame of 3 bytes is no message" in log
    assert worker.process.returncode == 0


def test_it_ends_when_nobody_is_at_the_other_end_and_not_at_a_terminals_signal(worker: Raw) -> None:
    worker.socket.sendall(encode_frame(start_frame()))
    assert isinstance(worker.receive(), NodeUp)
    worker.process.send_signal(signal.SIGINT)
    worker.process.send_signal(signal.SIGTERM)
    worker.socket.close()
    assert worker.process.wait(30) == 0


def test_it_dies_with_its_daemon_even_if_the_socket_stays_open(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    note, note_fd = create_crash_note()
    fds = (theirs.fileno(), note_fd)
    start = "import os, subprocess, sys; args = sys.argv[1:]; fds = [int(one) for one in args]"
    launch = "subprocess.Popen([sys.executable, '-m', 'llmhostd.worker', *args, str(os.getpid())], pass_fds=fds).wait()"
    daemon = subprocess.Popen([sys.executable, "-c", f"{start}; {launch}", *map(str, fds)], pass_fds=fds)
    ours.settimeout(30)
    ours.sendall(encode_frame(start_frame()))
    assert ours.recv(1)
    worker_pid = int(Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()[0])
    daemon.kill()
    daemon.wait()
    while _alive(worker_pid):
        time.sleep(0.01)
    ours.close()
    theirs.close()
    os.close(note_fd)
    note.close()


def _alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
