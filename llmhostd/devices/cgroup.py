"""How much of this machine may we use? Limits of the control groups around this process, version 1 and 2.

A limit anywhere on the way up binds, so every ancestor is read. A container often sees only its own part of the tree:
a path that does not exist below the mount then means the mount itself.
"""

from collections.abc import Iterator
from pathlib import Path

from llmhostd.domain.words import Word

UNLIMITED_V1_BYTES = 1 << 60
"""Version 1 writes "no limit" as a huge page-rounded number."""


class MemoryLimit(Word):
    """One limit of a control group, and what it leaves."""

    file: str
    """Where it is written, as a path on this machine."""
    limit_bytes: int
    left_bytes: int
    """Until it is reached, counting file cache that the kernel would drop."""


def memory_limits(root: Path = Path("/")) -> tuple[MemoryLimit, ...]:
    """Every limit that binds this process, the one that leaves least first.

    `memory.high` counts, too: beyond it the kernel slows every allocation down instead of refusing it.
    """
    limits = [limit for group in _groups(root, "") for limit in _limits_v2(root, group)]
    limits += [limit for group in _groups(root, "memory") for limit in _limits_v1(root, group)]
    return tuple(sorted(limits, key=lambda one: one.left_bytes))


def cpu_quota_cores(root: Path = Path("/")) -> float | None:
    """CPU time per second of wall time that the tightest quota allows; None: no quota."""
    quotas = [_quota_v2(group) for group in _groups(root, "")] + [_quota_v1(group) for group in _groups(root, "cpu")]
    return min((one for one in quotas if one is not None), default=None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Directories of this process's group and all its ancestors; controller "" is the unified tree."""
    base = root / "sys/fs/cgroup"
    mounts = [base, base / "unified"] if controller == "" else [base / controller]
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(",") or (controller == "" and controllers != ""):
            continue
        for mount in mounts:
            group = mount / path.lstrip("/")
            if not group.is_dir():
                group = mount
            while group.is_relative_to(mount) and group.is_dir():
                yield group
                group = group.parent


def _limits_v2(root: Path, group: Path) -> Iterator[MemoryLimit]:
    for name in ("memory.max", "memory.high"):
        limit = _text(group / name)
        if limit not in ("", "max"):
            yield _limit(root, group / name, int(limit), "memory.current", ("inactive_file", "active_file"))


def _limits_v1(root: Path, group: Path) -> Iterator[MemoryLimit]:
    path = group / "memory.limit_in_bytes"
    limit = int(_text(path) or UNLIMITED_V1_BYTES)
    if limit < UNLIMITED_V1_BYTES:
        yield _limit(root, path, limit, "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))


def _limit(root: Path, path: Path, limit_bytes: int, usage: str, droppable: tuple[str, str]) -> MemoryLimit:
    """File cache is given up before anybody is refused, as MemAvailable counts it for the whole machine."""
    used = int(_text(path.parent / usage) or 0) - sum(_stat(path.parent, name) for name in droppable)
    return MemoryLimit(
        file=f"/{path.relative_to(root)}", limit_bytes=limit_bytes, left_bytes=max(0, limit_bytes - max(0, used))
    )


def _stat(group: Path, name: str) -> int:
    rows = (line.split() for line in _text(group / "memory.stat").splitlines())
    return next((int(row[1]) for row in rows if len(row) == 2 and row[0] == name), 0)


def _quota_v2(group: Path) -> float | None:
    quota, _, period = _text(group / "cpu.max").partition(" ")
    return None if quota in ("", "max") else int(quota) / int(period)


def _quota_v1(group: Path) -> float | None:
    quota = int(_text(group / "cpu.cfs_quota_us") or -1)
    return None if quota <= 0 else quota / int(_text(group / "cpu.cfs_period_us"))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
