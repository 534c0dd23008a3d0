"""The unit is one that systemd understands, and says what the daemon needs."""

import shutil
import subprocess
from pathlib import Path

import pytest

from llmhostd.config import DaemonPolicy, load_config

PACKAGING = Path(__file__).parents[2] / "packaging"
UNIT = PACKAGING / "llmhostd.service"


def options() -> dict[str, list[str]]:
    """The options of [Service]; systemd adds up those that are given several times."""
    found: dict[str, list[str]] = {}
    in_service = False
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            in_service = line == "[Service]"
        elif in_service and line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def analyze(tmp_path: Path, *arguments: str) -> str:
    """What systemd-analyze says of the unit, with a program that exists on this machine."""
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/llmhostd/bin/llmhostd", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", *arguments, str(copy)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


has_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine")


@has_systemd
def test_systemd_has_nothing_to_complain_about(tmp_path: Path) -> None:
    assert analyze(tmp_path, "verify", "--man=no") == ""


@has_systemd
def test_the_sandbox_is_tight(tmp_path: Path) -> None:
    verdict = analyze(tmp_path, "security", "--offline=true", "--no-pager").strip().splitlines()[-1]
    assert float(verdict.split(": ")[1].split()[0]) < 2.0


def test_the_daemon_has_time_to_drain() -> None:
    assert float(options()["TimeoutStopSec"][0]) > DaemonPolicy().drain_timeout_s


def test_compiling_kernels_stays_possible() -> None:
    # OpenVINO compiles for this CPU at run time; it also reads /proc/cpuinfo, and workers bind themselves to cores.
    assert "MemoryDenyWriteExecute" not in options()
    assert "ProcSubset" not in options()
    assert "~@resources" not in options()["SystemCallFilter"]


def test_a_killed_worker_does_not_stop_the_service() -> None:
    assert options()["OOMPolicy"] == ["continue"]
    assert options()["KillMode"] == ["mixed"]


def test_state_lies_where_the_unit_says() -> None:
    config = load_config(PACKAGING / "llmhostd.toml")
    assert config.daemon.state_dir == f"/var/lib/{options()['StateDirectory'][0]}"
