"""Does a second owner of the same state get a clear error, and is the lock gone with its owner, however it ends?"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmhostd.domain.errors import OperatorError
from llmhostd.state.lock import own_state

HOLD = """
import sys, time
from pathlib import Path
from llmhostd.state.lock import own_state
with own_state(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def hold_elsewhere(directory: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(directory)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_second_owner_is_told_the_pid_of_the_first(tmp_path: Path) -> None:
    holder = hold_elsewhere(tmp_path / "state")
    try:
        with (
            pytest.raises(OperatorError, match=re.escape(f"in use by another llmhostd (pid {holder.pid})")),
            own_state(tmp_path / "state"),
        ):
            pass
    finally:
        holder.kill()
        holder.wait()


def test_lock_is_free_after_its_owner_was_killed(tmp_path: Path) -> None:
    holder = hold_elsewhere(tmp_path)
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with own_state(tmp_path):
        assert (tmp_path / "llmhostd.lock").read_text() == f"{os.getpid()}\n"


def test_lock_is_free_after_the_block(tmp_path: Path) -> None:
    for _ in range(2):
        with own_state(tmp_path):
            pass


def test_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OperatorError, match="file/state: cannot keep state here: Not a directory"),
        own_state(tmp_path / "file" / "state"),
    ):
        pass
