"""Real processes."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from process_use import process_use

HOLD_64_MIB = (
    "import sys; held = b'x' * (64 << 20); sum(range(3_000_000)); print('ready', flush=True); sys.stdin.read()"
)


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_64_MIB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        process.stdout.readline()
        yield process
        process.kill()


def test_memory_and_time_of_a_process(holder: subprocess.Popen[str]) -> None:
    use = process_use([holder.pid])
    assert 64 << 20 <= use.pss_bytes <= use.rss_bytes < 256 << 20
    assert use.cpu_s > 0


def test_processes_add_up_and_ended_ones_count_nothing(holder: subprocess.Popen[str]) -> None:
    both = process_use([holder.pid, os.getpid()])
    assert both.pss_bytes > process_use([os.getpid()]).pss_bytes
    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    assert process_use([holder.pid]).pss_bytes == 0  # a zombie: it holds nothing any more
    holder.wait()
    assert process_use([holder.pid]).rss_bytes == 0
