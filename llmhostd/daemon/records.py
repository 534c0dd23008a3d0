"""How is the state written without the event loop waiting for the disk?

One thread owns the database from the moment the daemon serves: writes happen in the order in which they were asked.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from sqlite_utils import Database

from llmhostd.api.service import RefusedError
from llmhostd.daemon.backlog import Backlog
from llmhostd.domain.actions import Refusal
from llmhostd.domain.ids import HardwareKey, ModelName, NodeId
from llmhostd.domain.profile import Profile
from llmhostd.domain.snapshot import UsageRow
from llmhostd.domain.start import StartSeen
from llmhostd.state.database import DATABASE_FILE, open_database
from llmhostd.state.flex import FlexTable
from llmhostd.state.models import ModelTable, RegisteredModel
from llmhostd.state.placements import Placement, PlacementTable
from llmhostd.state.profiles import ProfileTable
from llmhostd.state.set_aside import SetAside, SetAsideTable
from llmhostd.state.starts import StartTable
from llmhostd.state.usage import UsageBook, UsageTable

_Result = TypeVar("_Result")


class Records:
    """The daemon's tables."""

    def __init__(self, directory: Path) -> None:
        """Open the database. Raises OperatorError naming the file."""
        self._db: Database = open_database(directory)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="state")
        self.usage = UsageBook()
        self.flex = FlexTable(self._db)
        """To be used through `done` and `soon` only, as the next."""
        self.placements = PlacementTable(self._db)
        self._set_aside = SetAsideTable(self._db)
        self._backlog = Backlog()

    @property
    def trouble(self) -> str:
        """What the disk does not take at this time, for people; empty if all is stored."""
        return self._backlog.trouble

    def load(self) -> tuple[list[RegisteredModel], list[Profile], list[Placement]]:
        """Return what earlier runs left; before anything is written."""
        return ModelTable(self._db).all(), ProfileTable(self._db).all(), self.placements.all()

    async def put_model(self, model: RegisteredModel) -> None:
        """Return once it is stored. Raises RefusedError if it cannot be."""
        await self._changed(partial(ModelTable(self._db).put, model))

    async def remove_model(self, name: ModelName) -> None:
        """Return once it is gone. Raises RefusedError if that cannot be stored."""
        await self._changed(partial(ModelTable(self._db).remove, name))

    def keep_profile(self, profile: Profile) -> None:
        """Store it soon."""
        self.soon("profiles", partial(ProfileTable(self._db).put, profile))

    def keep_start(self, seen: StartSeen) -> None:
        """Store it soon."""
        self.soon("start times", partial(StartTable(self._db).put, seen))

    def starts(self, hardware: Collection[HardwareKey]) -> list[StartSeen]:
        """Return what earlier runs saw of starts; before anything is written."""
        return StartTable(self._db).latest(hardware)

    def set_aside(self) -> list[SetAside]:
        """Return what earlier runs left quarantined and drained; before anything is written."""
        return self._set_aside.all()

    def quarantine(self, model: ModelName, because: str) -> None:
        """Store it soon."""
        self.soon("quarantined models", partial(self._set_aside.quarantine, model, because))

    async def release(self, model: ModelName) -> None:
        """Return once it is stored that a model may try again. Raises RefusedError if it cannot be; so do the next."""
        await self._changed(partial(self._set_aside.release, model))

    async def drain(self, node_id: NodeId) -> None:
        """Return once it is stored that a node is to be empty."""
        await self._changed(partial(self._set_aside.drain, node_id))

    async def end_drain(self, node_id: NodeId) -> None:
        """Return once it is stored that a node is used again."""
        await self._changed(partial(self._set_aside.end_drain, node_id))

    def flush_usage(self) -> None:
        """Store what was counted, soon, and whatever could not be stored before."""
        counted = self.usage.take()
        if counted:
            self.soon("usage", partial(UsageTable(self._db).add, counted))
        elif self.trouble:
            self._thread.submit(self._backlog.catch_up)

    async def read_usage(self, *, per_day: bool, since: str) -> list[UsageRow]:
        """Return counters with what was counted until now; see `UsageTable.rows`."""
        self.flush_usage()
        return await self.done(partial(UsageTable(self._db).rows, per_day=per_day, since=since))

    async def flush_often(self, every_s: float) -> None:
        """Store usage now and again, for ever."""
        while True:
            await asyncio.sleep(every_s)
            self.flush_usage()

    def close(self) -> None:
        """Write what is left, then close. What the disk still does not take is lost, and was said."""
        self.flush_usage()
        self._thread.shutdown(wait=True)
        self._db.close()

    async def done(self, call: Callable[[], _Result]) -> _Result:
        """Return what a call on the tables returns, once it is stored. Raises sqlite3.Error."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def soon(self, what: str, call: Callable[[], object]) -> None:
        """Have something stored in its turn, however long the disk does not take it; see `Backlog.write`."""
        self._thread.submit(self._backlog.write, what, call)

    async def _changed(self, call: Callable[[], object]) -> None:
        """Return once a change is stored, in its turn. Raises RefusedError if it is not."""

        def in_turn() -> None:
            if error := self._backlog.catch_up():
                raise error
            call()

        try:
            await self.done(in_turn)
        except sqlite3.Error as error:
            raise RefusedError(
                Refusal.UNAVAILABLE, f"{DATABASE_FILE}: {error}; nothing was changed", retry_after_s=60.0
            ) from error
