"""`doctor` on machines and state directories that are broken in one way each."""

import socket
from pathlib import Path

import pytest
from typed_commands import llmhostd

from llmhostd.cli import checks
from llmhostd.cli.checks import Finding, Mark
from llmhostd.cli.daemon_checks import check_served_nodes
from llmhostd.devices.probe import CacheFacts, CpuFacts
from llmhostd.domain.hardware import NodeKind
from llmhostd.domain.ids import NodeId
from llmhostd.domain.snapshot import NodeSnapshot
from llmhostd.state.database import open_database


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def facts(quota_cores: float | None = None) -> CpuFacts:
    cache = CacheFacts(level=3, kind="Unified", bytes=32 << 20, shared_by=(0, 1))
    return CpuFacts(
        model_name="Some CPU", family="6.1", cores=(0, 1, 2, 3), physical_cores=2, flags=("avx2",),
        numa_nodes=((0, 1, 2, 3),), caches=(cache,), quota_cores=quota_cores,
    )  # fmt: skip


def marks(findings: "object") -> list[tuple[Mark, str]]:
    return [(one.mark, one.subject) for one in list[Finding](findings)]  # type: ignore[call-overload]


def test_a_cpu_quota_is_slow() -> None:
    assert marks(checks.check_cpu(facts())) == [(Mark.GOOD, "cpu")]
    assert marks(checks.check_cpu(facts(quota_cores=1.5))) == [(Mark.GOOD, "cpu"), (Mark.SLOW, "cpu quota")]


@pytest.mark.parametrize(
    ("governor", "driver", "found"),
    [
        ("powersave", "acpi-cpufreq", [(Mark.SLOW, "cpu clock")]),
        ("powersave", "intel_pstate", []),  # its powersave follows the load
        ("performance", "acpi-cpufreq", []),
    ],
)
def test_a_low_clock_is_slow(tmp_path: Path, governor: str, driver: str, found: list[tuple[Mark, str]]) -> None:
    base = "sys/devices/system/cpu/cpu0/cpufreq"
    root = write(tmp_path, {f"{base}/scaling_governor": governor, f"{base}/scaling_driver": driver})
    assert marks(checks.check_clock_speed(root)) == found


@pytest.mark.parametrize(("load", "found"), [("0.50", []), ("9.10", [(Mark.SLOW, "neighbours")])])
def test_others_on_the_cores_are_slow(tmp_path: Path, load: str, found: list[tuple[Mark, str]]) -> None:
    root = write(tmp_path, {"proc/loadavg": f"{load} 1.00 1.00 1/234 5678\n"})
    assert marks(checks.check_neighbours(facts(), root)) == found


@pytest.mark.parametrize(
    ("available_kib", "pages", "found"),
    [
        (8 << 20, "always [madvise] never", [(Mark.GOOD, "memory")]),
        (1 << 20, "always [madvise] never", [(Mark.SLOW, "memory")]),
        (8 << 20, "always madvise [never]", [(Mark.GOOD, "memory"), (Mark.SLOW, "huge pages")]),
    ],
)
def test_memory(tmp_path: Path, available_kib: int, pages: str, found: list[tuple[Mark, str]]) -> None:
    files = {
        "proc/meminfo": f"MemTotal: {16 << 20} kB\nMemAvailable: {available_kib} kB\n",
        "proc/self/cgroup": "",
        "sys/kernel/mm/transparent_hugepage/enabled": pages,
    }
    assert marks(checks.check_memory(write(tmp_path, files))) == found


def test_few_open_files_are_slow() -> None:
    assert marks(checks.check_open_files(1024)) == [(Mark.SLOW, "open files")]
    assert marks(checks.check_open_files(65536)) == []


def state_mark(directory: Path) -> tuple[Mark, str]:
    (state, *_) = checks.check_state(directory)
    return state.mark, state.sentence


def test_a_state_that_can_be_made_or_is_empty_is_good(tmp_path: Path) -> None:
    assert state_mark(tmp_path / "a" / "b") == (
        Mark.GOOD,
        f"{tmp_path / 'a' / 'b'} does not exist yet and can be made.",
    )
    assert state_mark(tmp_path) == (Mark.GOOD, f"{tmp_path} is writable and empty.")
    assert list(tmp_path.iterdir()) == []


def test_a_sound_and_a_damaged_database(tmp_path: Path) -> None:
    open_database(tmp_path).close()
    file = tmp_path / "state.db"
    assert state_mark(tmp_path) == (Mark.GOOD, f"{file} is sound and knows 0 model(s).")
    file.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    mark, sentence = state_mark(tmp_path)
    assert mark is Mark.BROKEN
    assert str(file) in sentence


def test_a_file_in_place_of_the_state(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert state_mark(tmp_path / "file" / "state")[0] is Mark.BROKEN


def test_a_port_that_is_taken_is_broken_unless_it_is_ours() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (found,) = checks.check_port("127.0.0.1", port, ours=False)
        assert found.mark is Mark.BROKEN
        assert f"127.0.0.1:{port} cannot be had (Address already in use)" in found.sentence
        assert list(checks.check_port("127.0.0.1", port, ours=True)) == []
    assert marks(checks.check_port("127.0.0.1", port, ours=False)) == [(Mark.GOOD, "port")]


@pytest.mark.parametrize(
    ("up", "restarts", "draining", "found"),
    [
        (True, 3, False, []),
        (False, 0, False, [(Mark.SLOW, "cpu0 is not up yet")]),
        (False, 1, False, [(Mark.BROKEN, "cpu0 is down: its worker ended once.")]),
        (False, 2, True, [(Mark.BROKEN, "cpu0 is down: its worker ended 2 times."), (Mark.SLOW, "cpu0 is drained")]),
    ],
)
def test_a_node_that_is_not_there_is_said(
    up: bool, restarts: int, draining: bool, found: list[tuple[Mark, str]]
) -> None:
    node = NodeSnapshot(
        id=NodeId("cpu0"), kind=NodeKind.CPU, engine="openvino", hardware="", cores=(0,), up=up, memory_bytes=1,
        weights_bytes=0, kv_bytes=0, kv_used_bytes=0, free_bytes=1, busy=0.0, iterations_per_s=0.0, tokens_per_s=0.0,
        restarts=restarts, draining=draining,
    )  # fmt: skip
    said = list(check_served_nodes([node]))
    assert [one.mark for one in said] == [mark for mark, _ in found]
    assert all(one.sentence.startswith(words) for one, (_, words) in zip(said, found, strict=True))


def test_doctor_looks_at_everything_and_exits_with_1_when_something_is_broken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = tmp_path / "settings.toml"
        settings.write_text(f"[http]\nport = {taken.getsockname()[1]}\n")
        done = llmhostd("--config", settings, "--state-dir", tmp_path / "state", "doctor")
    subjects = {line.split()[1] for line in done.stdout.splitlines() if line[:1] in "✓!✗"}
    assert {"cpu", "memory", "engine", "settings", "state", "disk", "daemon", "port"} <= subjects
    assert "openvino 2026.4.1 computes" in done.stdout
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("✗")] == ["port"]
    assert done.returncode == 1
    assert not (tmp_path / "state").exists()


def test_doctor_goes_on_when_the_settings_are_wrong(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text("[http\n")
    done = llmhostd("--config", settings, "doctor")
    assert done.returncode == 1
    assert "is not TOML" in done.stdout
