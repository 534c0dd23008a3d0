"""How is every event and decision remembered without the event loop noticing?

The loop appends to a list; a thread of its own makes bytes of it, now and again, and writes them.
"""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from llmhostd import __version__
from llmhostd.daemon.mind import Mind
from llmhostd.domain.actions import HostAction
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.events import ClockTicked, HostEvent
from llmhostd.host.snapshots import MindSnapshot
from llmhostd.state.journal import Journal, JournalPolicy, MadeWith, Step

log = logging.getLogger(__name__)

MOST_UNWRITTEN = 200_000
"""Steps that may wait for a slow disk: some 100 MB."""
FEW = 100
_MIB = 1 << 20


class Journaling:
    """The history of this run of the daemon. If it cannot be written it ends, the log says so, the daemon goes on."""

    def __init__(self, directory: Path, policy: JournalPolicy, *, mind: str, made_with: MadeWith) -> None:
        """Begin a history for a mind of the class `mind`."""
        self._policy = policy
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._pending: list[Step] = []
        self._noted = self._written = 0
        self.ended = ""
        """Why nothing is noted any more, for people; empty while it is, or if nothing is to be."""
        self._journal: Journal | None = None
        self._start = 0
        if not policy.max_mib:
            return
        try:
            self._journal = Journal(directory)
            self._start = self._journal.begin(
                at_unix_s=time.time(), version=__version__, mind=mind, made_with=made_with
            )
        except (OperatorError, sqlite3.Error) as error:
            self._end(str(error))

    def note(self, event: HostEvent, now: float, actions: Sequence[HostAction], error: str = "") -> None:
        """Take note of a step. Costs the caller well under a microsecond."""
        if self._journal is not None:
            self._pending.append(Step(now=now, event=event, actions=tuple(actions), error=error))

    async def flush_often(self) -> None:
        """Write now and again, for ever."""
        while True:
            await asyncio.sleep(self._policy.flush_s)
            self.flush()

    def flush(self) -> None:
        """Have what was noted written soon; but not a few ticks by themselves, which an idle box has all day."""
        if len(self._pending) < FEW and all(isinstance(one.event, ClockTicked) for one in self._pending):
            return
        self._write_soon()

    def _write_soon(self) -> None:
        taken, self._pending = self._pending, []
        if not taken or self._journal is None:
            return
        if self._noted - self._written > MOST_UNWRITTEN:
            self._end(f"the disk is {self._noted - self._written} steps behind")
            return
        first = self._noted + 1
        self._noted += len(taken)
        self._thread.submit(self._write, self._journal, first, taken)

    def close(self) -> None:
        """Write what is left, then close."""
        self._write_soon()
        self._thread.shutdown(wait=True)
        if self._journal is not None:
            self._journal.close()

    def _write(self, journal: Journal, first_sequence: int, steps: list[Step]) -> None:
        """In the thread. A step that is missing would end the history's use: so after a failure, nothing follows."""
        if self._written != first_sequence - 1:
            return
        try:
            journal.append(self._start, first_sequence, steps, self._policy.max_mib * _MIB)
        except sqlite3.Error as error:
            self._end(f"{journal.file}: {error}")
        else:
            self._written += len(steps)

    def _end(self, why: str) -> None:
        self.ended = f"the journal of this run ends after {self._written} steps: {why}"
        log.error("%s", self.ended)
        self._journal = None


class RecordedMind:
    """A mind whose steps are noted."""

    def __init__(self, mind: Mind, journaling: Journaling) -> None:
        self._mind = mind
        self._journaling = journaling

    def step(self, event: HostEvent, now: float) -> list[HostAction]:
        """See `Mind`. What a mind raises is noted, too: a replay raises it again."""
        try:
            actions = self._mind.step(event, now)
        except Exception as error:
            self._journaling.note(event, now, (), f"{type(error).__name__}: {error}")
            raise
        self._journaling.note(event, now, actions)
        return actions

    def snapshot(self, now: float) -> MindSnapshot:
        """See `Mind`."""
        return self._mind.snapshot(now)
