"""Commands as a person types them: in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

COMMAND = [str(Path(sys.executable).with_name("llmhostd"))]


def llmhostd(*arguments: str | Path, stdin: str = "", timeout: float = 120.0) -> "subprocess.CompletedProcess[str]":
    """Run `llmhostd` and wait for its end; the caller's own settings and state are out of its sight."""
    hidden = {"LLMHOSTD_DEBUG", "STATE_DIRECTORY", "LLMHOSTD_API_KEY", "OPENAI_API_KEY"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | {"HOME": "/nonexistent"}
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=stdin, capture_output=True, text=True, timeout=timeout, check=False, env=environment,
    )  # fmt: skip


def refused(*arguments: str | Path, status: int) -> str:
    """Run a command that must fail: with one line on stderr, which is returned, and no traceback."""
    done = llmhostd(*arguments)
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stdout == ""
    line, end, rest = done.stderr.partition("\n")
    assert (end, rest) == ("\n", ""), done.stderr
    assert line.startswith("llmhostd: ")
    return line.removeprefix("llmhostd: ")
