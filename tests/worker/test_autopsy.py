"""Who is to blame for a worker's death?"""

import os
import signal

import pytest

from llmhostd.domain.ids import InstanceId
from llmhostd.engines.crash_note import CrashNote, create_crash_note
from llmhostd.engines.supervisor import autopsy

M, N = InstanceId("m@cpu0#1"), InstanceId("org/a-name-that-is-longer@cpu0#2")


@pytest.fixture
def notes():
    """The daemon's mapping and the worker's."""
    ours, fd = create_crash_note()
    theirs = CrashNote(fd)
    os.close(fd)
    yield ours, theirs
    ours.close()
    theirs.close()


def test_what_is_loading_is_suspected_before_what_computes(notes: tuple[CrashNote, CrashNote]) -> None:
    ours, theirs = notes
    assert ours.suspect() is None
    theirs.computing(N)
    assert ours.suspect() == N
    theirs.computing(M)
    assert ours.suspect() == M
    theirs.loading(N)
    assert ours.suspect() == N
    theirs.loading(None)
    assert ours.suspect() == M
    theirs.computing(None)
    assert ours.suspect() is None


@pytest.mark.parametrize(
    ("status", "oom_killed", "suspect", "because"),
    [
        (-signal.SIGKILL, False, None, "its worker was killed from outside (SIGKILL)"),
        (-signal.SIGKILL, True, M, "its worker was killed by the kernel for want of memory while m@cpu0#1 was in use"),
        (-signal.SIGFPE, False, M, "its worker crashed (SIGFPE) while m@cpu0#1 was in use"),
        (1, False, M, "its worker ended with status 1 while m@cpu0#1 was in use; its log says more"),
    ],
)
def test_a_death_is_explained(
    notes: tuple[CrashNote, CrashNote], status: int, oom_killed: bool, suspect: InstanceId | None, because: str
) -> None:
    ours, theirs = notes
    theirs.computing(M)
    assert autopsy(status, ours, oom_killed=oom_killed) == (suspect, because)
