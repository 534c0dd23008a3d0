"""How is the state written without the event loop waiting for the disk?

One thread owns the database from the moment the daemon serves: writes happen in the order in which they were asked.
"""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from sqlite_utils import Database

from llmhostd.domain.errors import OperatorError
from llmhostd.domain.ids import HardwareKey, ModelName, NodeId
from llmhostd.domain.profile import Profile
from llmhostd.domain.snapshot import UsageRow
from llmhostd.domain.start import StartSeen
from llmhostd.state.database import open_database
from llmhostd.state.flex import FlexTable
from llmhostd.state.models import ModelTable, RegisteredModel
from llmhostd.state.placements import Placement, PlacementTable
from llmhostd.state.profiles import ProfileTable
from llmhostd.state.set_aside import SetAside, SetAsideTable
from llmhostd.state.starts import StartTable
from llmhostd.state.usage import UsageBook, UsageTable

log = logging.getLogger(__name__)

_Value = TypeVar("_Value")
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

    def load(self) -> tuple[list[RegisteredModel], list[Profile], list[Placement]]:
        """Return what earlier runs left; before anything is written."""
        return ModelTable(self._db).all(), ProfileTable(self._db).all(), self.placements.all()

    async def put_model(self, model: RegisteredModel) -> None:
        """Return once it is stored. Raises OperatorError if it cannot be."""
        with _said():
            await self._run(ModelTable(self._db).put, model)

    async def remove_model(self, name: ModelName) -> None:
        """Return once it is gone. Raises OperatorError if that cannot be stored."""
        with _said():
            await self._run(ModelTable(self._db).remove, name)

    def keep_profile(self, profile: Profile) -> None:
        """Store it soon; a failure is logged."""
        self._thread.submit(_logged(ProfileTable(self._db).put), profile)

    def keep_start(self, seen: StartSeen) -> None:
        """Store it soon; a failure is logged."""
        self._thread.submit(_logged(StartTable(self._db).put), seen)

    def starts(self, hardware: Collection[HardwareKey]) -> list[StartSeen]:
        """Return what earlier runs saw of starts; before anything is written."""
        return StartTable(self._db).latest(hardware)

    def set_aside(self) -> list[SetAside]:
        """Return what earlier runs left quarantined and drained; before anything is written."""
        return self._set_aside.all()

    def quarantine(self, model: ModelName, because: str) -> None:
        """Store it soon; a failure is logged."""
        self.soon(partial(self._set_aside.quarantine, model, because))

    async def release(self, model: ModelName) -> None:
        """Return once it is stored that a model may try again. Raises OperatorError if it cannot be; so do the next."""
        with _said():
            await self._run(self._set_aside.release, model)

    async def drain(self, node_id: NodeId) -> None:
        """Return once it is stored that a node is to be empty."""
        with _said():
            await self._run(self._set_aside.drain, node_id)

    async def end_drain(self, node_id: NodeId) -> None:
        """Return once it is stored that a node is used again."""
        with _said():
            await self._run(self._set_aside.end_drain, node_id)

    def flush_usage(self) -> None:
        """Store what was counted, soon; a failure is logged."""
        counted = self.usage.take()
        if counted:
            self._thread.submit(_logged(UsageTable(self._db).add), counted)

    async def read_usage(self, *, per_day: bool, since: str) -> list[UsageRow]:
        """Return counters with what was counted until now; see `UsageTable.rows`."""
        self.flush_usage()
        return await self._run(lambda table: table.rows(per_day=per_day, since=since), UsageTable(self._db))

    async def flush_often(self, every_s: float) -> None:
        """Store usage now and again, for ever."""
        while True:
            await asyncio.sleep(every_s)
            self.flush_usage()

    def close(self) -> None:
        """Write what is left, then close."""
        self.flush_usage()
        self._thread.shutdown(wait=True)
        self._db.close()

    async def done(self, call: Callable[[], _Result]) -> _Result:
        """Return what a call on the tables returns, once it is stored."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def soon(self, call: Callable[[], object]) -> None:
        """Have something stored in its turn; a failure is logged."""
        self._thread.submit(_logged(lambda _: call()), None)

    async def _run(self, function: Callable[[_Value], _Result], value: _Value) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, value)


@contextlib.contextmanager
def _said() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise OperatorError(f"state.db: {error}; nothing was changed") from error


def _logged(function: Callable[[_Value], object]) -> Callable[[_Value], None]:
    def run(value: _Value) -> None:
        try:
            function(value)
        except sqlite3.Error:
            log.exception("state.db: not stored by %s", function.__qualname__)

    return run
