"""What do our processes hold and use right now?"""

import os
from collections.abc import Iterable
from pathlib import Path

from llmhostd.domain.words import Word

ROOT = Path("/")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ProcessUse(Word):
    """One process, or several added up."""

    rss_bytes: int
    """Resident pages, shared ones counted in full by each process."""
    pss_bytes: int
    """Resident pages, shared ones divided among the processes that map them: these add up."""
    cpu_s: float
    """User and system time since the process began."""


def process_use(pids: Iterable[int], root: Path = ROOT) -> ProcessUse:
    """Sum over `pids`, which must be our own user's; one that has ended counts nothing.

    Reading PSS walks page tables: ask seconds apart, not faster.
    """
    uses = [_one(root / "proc" / str(pid)) for pid in pids]
    return ProcessUse(
        rss_bytes=sum(use.rss_bytes for use in uses),
        pss_bytes=sum(use.pss_bytes for use in uses),
        cpu_s=sum(use.cpu_s for use in uses),
    )


def _one(process: Path) -> ProcessUse:
    try:
        rollup = (process / "smaps_rollup").read_text()
        # The command name may hold spaces and parentheses: count the fields behind its last one.
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ProcessUse(rss_bytes=0, pss_bytes=0, cpu_s=0.0)
    sizes = {row[0]: int(row[1]) * 1024 for row in map(str.split, rollup.splitlines()[1:]) if len(row) == 3}
    user_ticks, system_ticks = int(fields[11]), int(fields[12])
    return ProcessUse(rss_bytes=sizes["Rss:"], pss_bytes=sizes["Pss:"], cpu_s=(user_ticks + system_ticks) / TICKS_PER_S)
