"""What becomes of a daemon whose disk takes nothing any more, and of what it wanted to keep meanwhile?"""

import resource
import time
from pathlib import Path

from daemon_process import EXACT, PATIENT, DaemonProcess
from typed_commands import llmhostd, refused

OFTEN = "[daemon]\nusage_flush_s = 0.1\n"
UNLIMITED = resource.RLIM_INFINITY


def ask(daemon: DaemonProcess, **more: object) -> int:
    body = {"model": "tiny-llama", "prompt": "a", "max_tokens": 3, **more}
    return daemon.http.post("/v1/completions", json=body).status_code


def not_stored(daemon: DaemonProcess) -> str:
    """Of the database; the journal of this run stays ended."""
    said = daemon.http.get("/api/v1/host").json()["not_stored"]
    return "".join(one for one in said if one.startswith("state.db: "))


def test_a_full_disk_is_said_everywhere_and_what_it_held_back_is_stored_once_there_is_room(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    with DaemonProcess(tmp_path, [tiny_models_dir / "tiny-llama"], settings=EXACT + PATIENT + OFTEN) as daemon:
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (0, UNLIMITED))
        assert [ask(daemon) for _ in range(3)] == [200, 200, 200]
        while "usage" not in not_stored(daemon):
            time.sleep(0.05)
        said = not_stored(daemon)
        assert ask(daemon, service_tier="flex") == 503
        drain = ("--state-dir", tmp_path, "drain", "cpu0")
        assert refused(*drain, status=1).endswith("; nothing was changed")
        removal = refused("--state-dir", tmp_path, "models", "rm", "tiny-llama", status=1)
        assert removal.endswith("; nothing was changed")
        assert ask(daemon) == 200
        diagnosis = llmhostd("--state-dir", tmp_path, "doctor", "--json")
        assert (diagnosis.returncode, said.split(";")[0] in diagnosis.stdout) == (1, True)
        assert "the journal of this run ends after" in diagnosis.stdout
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))
        while not_stored(daemon):
            time.sleep(0.05)
        assert ask(daemon, service_tier="flex") == 200
        daemon.process.kill()
        daemon.wait()
        assert "Traceback" not in daemon.log
        assert daemon.log.count("not stored yet") < 10
    usage = llmhostd("--state-dir", tmp_path, "usage").stdout.splitlines()[1]
    assert usage.split()[:2] in (["tiny-llama", "4"], ["tiny-llama", "5"])


def test_a_database_that_a_full_disk_holds_back_is_not_called_damaged(tmp_path: Path) -> None:
    """A directory in its place stands in for the disk: SQLite fails with the same kind of error."""
    (tmp_path / "state.db").write_text("no database at all, for it is too long for an empty one" * 99)
    damaged = llmhostd("--state-dir", tmp_path, "doctor", "--json").stdout
    assert "is damaged: file is not a database. Move it away" in damaged
    (tmp_path / "state.db").unlink()
    (tmp_path / "state.db").mkdir()
    away = llmhostd("--state-dir", tmp_path, "doctor", "--json").stdout
    assert "state.db cannot be read: " in away
    assert "Move it away" not in away
