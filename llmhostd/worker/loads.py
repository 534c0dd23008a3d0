"""Who builds and destroys instances while the device computes?

One thread builds, one job at a time: on CPUs a second builder slows the neighbours more than it hastens the load, and
even one yields to whoever computes (`process.give_way`). Another destroys, so that memory which others wait for never
waits for a load. Nothing here touches a runner; results wait until the device loop takes them. An engine that can lets
an instance begin iterations while its weights are read: the job then goes on beside them (λScale §4).
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from llmhostd.domain.errors import LlmhostdError
from llmhostd.domain.ids import InstanceId
from llmhostd.engines.crash_note import CrashNote
from llmhostd.engines.interface import Engine, EngineInstance, FillingInstance, LoadOptions
from llmhostd.loader.fetch import Fetch
from llmhostd.worker.neighbours import Neighbours
from llmhostd.worker.process import give_way

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Built:
    """A load ended well."""

    instance_id: InstanceId
    instance: EngineInstance
    took_s: float


@dataclass(frozen=True, slots=True)
class Compiled:
    """A load came so far that iterations can begin; it goes on."""

    instance_id: InstanceId
    instance: EngineInstance


@dataclass(frozen=True, slots=True)
class MoreRead:
    """An instance that was `Compiled` has more weights."""

    instance_id: InstanceId


@dataclass(frozen=True, slots=True)
class Damaged:
    """The weights of an instance that was `Compiled` cannot be had; it is still to be destroyed."""

    instance_id: InstanceId
    error: str


@dataclass(frozen=True, slots=True)
class Destroyed:
    """An instance is gone: as asked (no error), or because it could not be built."""

    instance_id: InstanceId
    took_s: float
    error: str = ""
    left_bytes: int = 0
    """What the engine holds all the same, because destroying it failed."""


Outcome = Built | Compiled | MoreRead | Damaged | Destroyed
Job = Callable[[], Outcome]


class Builder:
    """Both threads, their jobs and what came of them."""

    def __init__(self, engine: Engine, note: CrashNote, neighbours: Neighbours, ring: Callable[[], None]) -> None:
        """`ring` is called from either thread whenever an outcome waits."""
        self._engine = engine
        self._neighbours = neighbours
        self._note = note
        self._ring = ring
        self._builds: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._removals: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        for name, jobs in (("builder", self._builds), ("remover", self._removals)):
            threading.Thread(target=self._work, args=(jobs,), name=name, daemon=True).start()

    def load(
        self, instance_id: InstanceId, checkpoint: Path, options: LoadOptions, *, pack: bool, fetch: Fetch | None = None
    ) -> None:
        """Build and compile. `pack`: all that its first run needs to pack its weights, too.

        `fetch`: the weights are still coming; an engine that cannot wait for each of them is given them all.
        """
        self._builds.put(lambda: self._build(instance_id, checkpoint, options, fetch, pack=pack))

    @property
    def streams(self) -> bool:
        """Whether the engine builds while weights are still coming."""
        return self._engine.facts().arriving

    def destroy(self, instance: EngineInstance, instance_id: InstanceId) -> None:
        """Give back all that it holds: packed weights are given back only so."""
        self._removals.put(lambda: self._destroy(instance_id, instance))

    def outcomes(self) -> list[Outcome]:
        """Return what has ended since the last call."""
        ended = []
        while not self._outcomes.empty():
            ended.append(self._outcomes.get())
        return ended

    def _work(self, jobs: "queue.SimpleQueue[Job]") -> None:
        give_way()
        while True:
            job = jobs.get()
            self._tell(job())
            # Nothing of a finished job may keep an instance alive until the next one comes.
            del job

    def _tell(self, outcome: Outcome) -> None:
        self._outcomes.put(outcome)
        self._ring()

    def _build(
        self, instance_id: InstanceId, checkpoint: Path, options: LoadOptions, fetch: Fetch | None, *, pack: bool
    ) -> Outcome:
        began_s, compiled = time.monotonic(), False
        self._note.loading(instance_id)
        self._neighbours.loads(instance_id)
        options = msgspec.structs.replace(options, crowded=self._neighbours.crowd)
        try:
            if fetch is not None and self.streams:
                fetch.wait(1)
                options = msgspec.structs.replace(options, arriving=fetch)
            elif fetch is not None:
                fetch.wait_for_all()
            instance = self._engine.load(checkpoint, options)
            if isinstance(instance, FillingInstance) and instance.filling:
                self._tell(Compiled(instance_id, instance))
                compiled = True
                instance.fill(lambda: self._tell(MoreRead(instance_id)))
            took_s = time.monotonic() - began_s
            if pack:
                instance.pack()
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises, the other instances go on
            because = explain(error)
            if compiled:
                return Damaged(instance_id, because)
            return Destroyed(instance_id, time.monotonic() - began_s, because)
        finally:
            self._note.loading(None)
            self._neighbours.loads(None)
        return Built(instance_id, instance, took_s)

    def _destroy(self, instance_id: InstanceId, instance: EngineInstance) -> Outcome:
        began_s = time.monotonic()
        before_bytes, left_bytes = _held_bytes(instance, 0), 0
        try:
            instance.unload()
        except Exception as error:  # noqa: BLE001 - as above
            explain(error)
            left_bytes = _held_bytes(instance, before_bytes)
        return Destroyed(instance_id, time.monotonic() - began_s, left_bytes=left_bytes)


def _held_bytes(instance: EngineInstance, otherwise: int) -> int:
    """What the engine says that an instance holds, KV included; `otherwise` when it cannot even say that."""
    try:
        return instance.held_bytes() + instance.kv_blocks * instance.kv_bytes_per_block
    except Exception as error:  # noqa: BLE001 - as above
        explain(error)
        return otherwise


def explain(error: Exception) -> str:
    """One line for a person; the log gets it too, with the whole story unless it is an error that we meant."""
    if isinstance(error, LlmhostdError):
        log.error("%s", error)
        return str(error)
    line = f"the engine failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    log.error("%s", line, exc_info=error)
    return line
