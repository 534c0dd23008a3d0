"""Ctrl-C ends what takes long soon and quietly, whatever its processes compute just then."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from typed_commands import COMMAND

HEARS_CTRL_C = ("env", "--default-signal=INT")
"""What runs behind a shell's back inherits that Ctrl-C is ignored."""


@pytest.mark.parametrize(
    "command",
    [
        ("evaluate-starts", "--seeds", "2000", "--processes", "2"),
        ("plan", "--rate", "40", "--duration", "20000", "--processes", "2"),
    ],
    ids=lambda words: words[0],
)
def test_simulations_end_with_the_command(tmp_path: Path, command: tuple[str, ...]) -> None:
    state = tmp_path / "state"
    subprocess.run([*COMMAND, "--state-dir", state, "demo-models", "demo-noise-qwen2-5m"], check=True)
    running = subprocess.Popen(
        [*HEARS_CTRL_C, *COMMAND, "--state-dir", state, *command],
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        _interrupt(running)
        _, said = running.communicate(timeout=60)  # until nobody holds its stderr any more: its children have it, too
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 130
    assert "Traceback" not in said, said


def _interrupt(running: subprocess.Popen[str]) -> None:
    """Press Ctrl-C once a child of it computes."""
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    began: set[str] = set()
    while not any(child in began and not _catches(child) for child in children.read_text().split()):
        assert running.poll() is None
        began |= {child for child in children.read_text().split() if _catches(child)}
        time.sleep(0.01)
    os.killpg(running.pid, signal.SIGINT)


def _catches(pid: str) -> bool:
    """Whether Ctrl-C goes to Python there, as while it begins, and not to the kernel."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.split("SigCgt:")[1].split()[0], 16) >> (signal.SIGINT - 1) & 1)
