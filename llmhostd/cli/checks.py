"""What is broken here, what is slow, and why? Each check looks at one thing and says one sentence."""

import contextlib
import os
import shutil
import socket
import sqlite3
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from llmhostd.devices.probe import ROOT, CpuFacts, memory_available_bytes, memory_total_bytes
from llmhostd.domain.errors import LlmhostdError
from llmhostd.domain.words import Word
from llmhostd.state.database import DATABASE_FILE, spell_error

GIB = 1 << 30
LITTLE_DISK_BYTES = 2 * GIB
LITTLE_MEMORY_BYTES = 2 * GIB
FEW_OPEN_FILES = 4096


class Mark(StrEnum):
    """How bad is it?"""

    GOOD = "good"
    SLOW = "slow"
    """It works, but worse than it could."""
    BROKEN = "broken"


class Finding(Word):
    """One line of `doctor`."""

    mark: Mark
    subject: str
    sentence: str


def good(subject: str, sentence: str) -> Finding:
    """Nothing to do."""
    return Finding(mark=Mark.GOOD, subject=subject, sentence=sentence)


def slow(subject: str, sentence: str) -> Finding:
    """It works, but worse than it could."""
    return Finding(mark=Mark.SLOW, subject=subject, sentence=sentence)


def broken(subject: str, sentence: str) -> Finding:
    """Somebody must act."""
    return Finding(mark=Mark.BROKEN, subject=subject, sentence=sentence)


def ended(error: LlmhostdError) -> str:
    """What an error says, as a sentence; some ask whether another name was meant."""
    said = str(error)
    return said if said.endswith("?") else f"{said}."


def check_cpu(facts: CpuFacts) -> Iterator[Finding]:
    """Cores, caches and limits."""
    cache = max(facts.caches, key=lambda one: one.level, default=None)
    last = f", L{cache.level} {cache.bytes // 2**20} MiB" if cache else ""
    yield good(
        "cpu",
        f"{facts.model_name}: {len(facts.cores)} logical cores on {facts.physical_cores} physical ones, "
        f"{len(facts.numa_nodes)} NUMA node(s){last}; {', '.join(facts.flags) or 'no vector extensions that count'}",
    )
    if facts.quota_cores is not None and facts.quota_cores < facts.physical_cores:
        yield slow(
            "cpu quota",
            f"the control group allows {facts.quota_cores:g} cores' time on {facts.physical_cores} cores: threads "
            "are frozen in the middle of an iteration. Bind the daemon to whole cores (AllowedCPUs=) instead.",
        )


def check_clock_speed(root: Path = ROOT) -> Iterator[Finding]:
    """A governor that keeps the clock low."""
    base = root / "sys/devices/system/cpu/cpu0/cpufreq"
    governor, driver = _text(base / "scaling_governor"), _text(base / "scaling_driver")
    if governor == "powersave" and "pstate" not in driver:
        yield slow("cpu clock", "the powersave governor keeps the clock low: `cpupower frequency-set -g performance`.")


def check_neighbours(facts: CpuFacts, root: Path = ROOT) -> Iterator[Finding]:
    """Others that compute on the same cores: spin-waiting threads then make everybody many times slower."""
    load = float((_text(root / "proc/loadavg") or "0").split()[0])
    if load > 1.5 * len(facts.cores):
        yield slow(
            "neighbours",
            f"{load:.1f} threads want to run on {len(facts.cores)} cores: iterations wait for other programs, and "
            "promises are broken that profiles would keep.",
        )


def check_memory(root: Path = ROOT) -> Iterator[Finding]:
    """Memory, limits, huge pages."""
    available, total = memory_available_bytes(root), memory_total_bytes(root)
    sentence = f"{available / GIB:.1f} GiB available of {total / GIB:.1f} GiB"
    if available < LITTLE_MEMORY_BYTES:
        yield slow("memory", f"{sentence}: little room for models; see what else runs, or a control group's limit.")
    else:
        yield good("memory", f"{sentence}.")
    if "[never]" in _text(root / "sys/kernel/mm/transparent_hugepage/enabled"):
        yield slow(
            "huge pages",
            "transparent huge pages are off: page faults take up to a third of a cold start, "
            "and every token some percent more. "
            "`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`.",
        )


def check_open_files(limit: int) -> Iterator[Finding]:
    """Each caller's connection is a file."""
    if limit < FEW_OPEN_FILES:
        yield slow("open files", f"the limit is {limit}: more callers than that are turned away. `ulimit -n 65536`.")


def check_state(directory: Path) -> Iterator[Finding]:
    """The state directory, its database and its disk. Changes nothing."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        yield broken("state", f"{existing} cannot be written by this user: give --state-dir, or change its owner.")
        return
    if existing == directory:
        yield _check_database(directory)
    else:
        yield good("state", f"{directory} does not exist yet and can be made.")
    free = shutil.disk_usage(existing).free
    little = free < LITTLE_DISK_BYTES
    sentence = f"{free / GIB:.1f} GiB free in {existing}"
    yield slow("disk", f"{sentence}: little room for models.") if little else good("disk", f"{sentence}.")


def check_port(host: str, port: int, ours: bool) -> Iterator[Finding]:
    """Whether the daemon could listen, or does."""
    if ours:
        return
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            yield broken("port", f"{host}:{port} cannot be had ({error.strerror}): set http.port in the settings.")
        else:
            yield good("port", f"{host}:{port} is free.")


def served_paths(directory: Path) -> set[Path]:
    """Where the models of a state directory lie, looked up without changing anything. Raises sqlite3.Error."""
    file = directory / DATABASE_FILE
    if not file.exists():
        return set()
    with _looked_into(file) as database:
        return {Path(path) for (path,) in database.execute("select path from models")}


def _check_database(directory: Path) -> Finding:
    file = directory / DATABASE_FILE
    if not file.exists():
        return good("state", f"{directory} is writable and empty.")
    try:
        with _looked_into(file) as database:
            (verdict,) = database.execute("pragma quick_check").fetchone()
            (models,) = database.execute("select count(*) from models").fetchone()
    except sqlite3.OperationalError as error:
        return broken("state", f"{file} cannot be read: {spell_error(error, file)}.")
    except sqlite3.Error as error:
        return broken("state", f"{file} is damaged: {error}. Move it away; models can be added again.")
    if verdict != "ok":
        return broken("state", f"{file} is damaged: {verdict}. Move it away; models can be added again.")
    return good("state", f"{file} is sound and knows {models} model(s).")


def _looked_into(file: Path) -> "contextlib.closing[sqlite3.Connection]":
    """Open a database that is not to be changed, not even brought up to date."""
    return contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
