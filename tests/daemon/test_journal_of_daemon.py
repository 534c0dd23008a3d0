"""Does a real daemon's journal hold what it heard and decided, and does a fresh mind decide it again?"""

import json
import os
import re
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

from daemon_process import COMMAND, EXACT, PATIENT, DaemonProcess

from llmhostd.domain.events import RequestArrived
from llmhostd.domain.reports import IterationReported
from llmhostd.state.journal import Journal, Start, Step

SECRET = "zanzibar"
CHAT = {"model": "tiny-llama", "messages": [{"role": "user", "content": f"{SECRET} {SECRET}"}], "max_tokens": 12,
        "ignore_eos": True, "logprobs": True, "top_logprobs": 3}  # fmt: skip


def replay(state: Path, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [*COMMAND, "--state-dir", str(state), "replay", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def last_history(state: Path) -> tuple[Start, list[Step]]:
    with closing(Journal(state)) as journal:
        start = journal.starts()[-1]
        return start, list(journal.steps(start))


def serve(state: Path, models: list[Path], *, settings: str = EXACT + PATIENT) -> None:
    """A busy minute in the life of a daemon, in a second: answers, a refusal, an unload, a crash of its worker."""
    with DaemonProcess(state, models, settings=settings) as daemon:
        for each in (CHAT, CHAT | {"model": "tiny-qwen3"}):
            assert daemon.http.post("/v1/chat/completions", json=each).status_code == 200
        os.kill(daemon.worker_pids()[0], signal.SIGKILL)
        assert daemon.http.post("/v1/chat/completions", json=CHAT).status_code == 200
        daemon.http.post("/api/v1/models/tiny-llama/unload", json={})


def test_a_daemons_history_is_decided_again_to_the_letter_without_a_word_of_anybody(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    state = tmp_path / "state"
    serve(state, [tiny_models_dir / "tiny-llama", tiny_models_dir / "tiny-qwen3"])
    start, steps = last_history(state)
    kinds = {type(step.event).__name__ for step in steps}
    assert {"NodeUp", "NodeDown", "ModelAdded", "RequestArrived", "IterationReported", "UnloadAsked"} <= kinds
    told = replay(state)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "decided again: the same decisions for the same reasons" in told.stdout
    assert f"start {start.number}, " in told.stdout
    listed = replay(state, "--list").stdout.splitlines()
    assert listed[1].split()[0] == "1"
    assert listed[1].split()[-1] == "yes"

    # With other settings it says where they matter: the first caller is granted no time for the load.
    (tmp_path / "new.toml").write_text("[routing]\ncold_start_grace = false\n")
    told = replay(state, "--with-settings", tmp_path / "new.toml", "--json")
    assert told.returncode == 1, told.stderr
    first = json.loads(told.stdout)["first"][0]
    then, now = (next(one for one in first[when] if one["type"] == "SubmitRequest") for when in ("then", "now"))
    assert then["request"]["grace_s"] > now["request"]["grace_s"] == 0.0
    shown = replay(state, "--with-settings", tmp_path / "new.toml").stdout
    assert "answered otherwise" in shown
    assert "  then SubmitRequest req-" in shown
    assert re.search(r"^  request\.grace_s: \d+\.\d+ then, 0\.0 now$", shown, re.MULTILINE)

    # And no word of what was said is in it.
    asked = [step.event.request for step in steps if isinstance(step.event, RequestArrived)]
    assert [one.prompt_tokens > 2 for one in asked] == [True] * 3
    rows = [row for step in steps if isinstance(step.event, IterationReported) for row in step.event.rows]
    assert sum(len(row.tokens) for row in rows) >= 3 * 12
    assert {token for row in rows for token in row.tokens} == {0}
    assert not any(row.logprobs for row in rows)
    assert SECRET not in repr(steps)


def test_a_killed_daemon_leaves_a_journal_that_can_be_decided_again(tmp_path: Path, tiny_models_dir: Path) -> None:
    state = tmp_path / "state"
    settings = EXACT + PATIENT + "[journal]\nflush_s = 0.05\n"
    with DaemonProcess(state, [tiny_models_dir / "tiny-llama"], settings=settings) as daemon:
        with daemon.http.stream(
            "POST", "/v1/chat/completions", json=CHAT | {"max_tokens": 400, "stream": True}
        ) as told:
            lines = told.iter_lines()
            for _ in range(50):
                next(lines)
            while not any(isinstance(step.event, IterationReported) for step in last_history(state)[1]):
                time.sleep(0.02)
            daemon.process.kill()
        daemon.wait()
    assert replay(state).returncode == 0
    with DaemonProcess(state, settings=settings):
        pass
    told = replay(state, "--start", "1")
    assert told.returncode == 0, told.stdout
    assert len(replay(state, "--list").stdout.splitlines()) == 3
    assert "there are: 1, 2" in replay(state, "--start", "7").stderr


def test_a_journal_that_cannot_be_written_is_said_and_stops_nobody(tmp_path: Path, tiny_models_dir: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "journal.db").write_bytes(b"no database at all" * 100)
    with DaemonProcess(state, [tiny_models_dir / "tiny-llama"]) as daemon:
        assert daemon.http.post("/v1/chat/completions", json=CHAT).status_code == 200
    assert "the journal of this run ends after 0 steps" in daemon.log
    assert "file is not a database" in daemon.log
    assert "file is not a database" in replay(state).stderr


def test_without_a_size_nothing_is_recorded(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with DaemonProcess(state, settings="[journal]\nmax_mib = 0\n"):
        pass
    assert not (state / "journal.db").exists()
    assert "there is no journal" in replay(state).stderr
    with closing(sqlite3.connect(state / "state.db")) as db:
        assert db.execute("select count(*) from models").fetchone() == (0,)
