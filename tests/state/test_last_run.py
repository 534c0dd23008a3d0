"""Does a run know how the one before ended, whatever ended it and whatever is left of its note?"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmhostd.daemon.returning import end_of
from llmhostd.state.last_run import FILE, LastRun, RunNote, boot_id, last_run

KILLED = """
import os, signal, sys
from pathlib import Path
from llmhostd.state.last_run import RunNote
note = RunNote(Path(sys.argv[1]))
note.begin()
for count in (1, 2, 3):
    note.people(count)
os.kill(os.getpid(), signal.SIGKILL)
"""


def run(directory: Path) -> RunNote:
    note = RunNote(directory)
    note.begin()
    return note


def test_a_killed_run_leaves_its_count_and_runs_that_end_at_once_are_counted(tmp_path: Path) -> None:
    for before in range(3):
        subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
        left = last_run(tmp_path)
        assert left is not None
        assert (left.people, left.stopped, left.short, left.short_runs) == (3, False, True, before)
        assert not left.machine_went_down
        assert end_of(left).endswith("; 3 streams of people ended with it")


def test_a_run_that_was_stopped_says_whom_it_left_and_begins_the_count_anew(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    note = run(tmp_path)
    note.people(2)
    note.stopped()
    note.people(0)  # they are told now that it ends
    note.close()
    left = last_run(tmp_path)
    assert left is not None
    assert (left.people, left.stopped, left.short, left.short_runs) == (2, True, False, 1)
    assert end_of(left) == "2 streams of people outlived the drain of the last run and ended with it"
    run(tmp_path).close()
    again = last_run(tmp_path)
    assert again is not None
    assert (again.people, again.short_runs) == (0, 0)


def test_a_full_disk_is_found_when_the_note_is_opened_and_not_by_a_signal_later(tmp_path: Path) -> None:
    note = RunNote(tmp_path)
    assert (tmp_path / FILE).stat().st_blocks > 0
    note.close()


def test_until_it_begins_a_run_leaves_the_note_of_the_last(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    note = RunNote(tmp_path)
    note.close()
    assert last_run(tmp_path) == note.last


@pytest.mark.parametrize("content", [b"", b"\0" * 4096, b"llmhrun1", os.urandom(4096)])
def test_what_cannot_be_read_is_as_if_there_were_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert last_run(tmp_path) is None
    note = run(tmp_path)
    assert note.last is None
    note.close()


def test_a_machine_that_went_down_is_told_from_a_daemon_that_did() -> None:
    left = LastRun(boot_id="another", began_at=0.0, seen_at=1e9, people=0, short_runs=0, stopped=False)
    assert end_of(left).startswith("the machine went down under the last run, ")
    assert end_of(left).endswith("; nobody waited for a token then")
    assert boot_id() != "another"
    assert end_of(None) == ""
