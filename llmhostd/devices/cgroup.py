"""How much of this machine may we use? Limits of the control groups around this process, version 1 and 2.

A limit anywhere on the way up binds, so every ancestor is read. A container often sees only its own part of the tree:
a path that does not exist below the mount then means the mount itself.
"""

from collections.abc import Iterator
from pathlib import Path

UNLIMITED_V1_BYTES = 1 << 60
"""Version 1 writes "no limit" as a huge page-rounded number."""


def memory_left_bytes(root: Path = Path("/")) -> int | None:
    """What the tightest memory limit leaves, counting cache that the kernel would drop; None: no limit."""
    left = [_left_v2(group) for group in _groups(root, "")] + [_left_v1(group) for group in _groups(root, "memory")]
    return min((max(one, 0) for one in left if one is not None), default=None)


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


def _left_v2(group: Path) -> int | None:
    limit = _text(group / "memory.max")
    if limit in ("", "max"):
        return None
    return int(limit) - int(_text(group / "memory.current") or 0) + _stat(group, "inactive_file")


def _left_v1(group: Path) -> int | None:
    limit = int(_text(group / "memory.limit_in_bytes") or UNLIMITED_V1_BYTES)
    if limit >= UNLIMITED_V1_BYTES:
        return None
    return limit - int(_text(group / "memory.usage_in_bytes") or 0) + _stat(group, "total_inactive_file")


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
