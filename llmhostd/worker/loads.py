"""Who builds and destroys instances while the device computes?

One thread, one job at a time: on CPUs a second builder slows the neighbours more than it hastens the load. Nothing here
touches a runner; results wait until the device loop takes them.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llmhostd.domain.errors import LlmhostdError
from llmhostd.domain.ids import InstanceId
from llmhostd.engines.crash_note import CrashNote
from llmhostd.engines.interface import Engine, EngineInstance, LoadOptions

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Built:
    """A load or a rest ended well."""

    instance_id: InstanceId
    instance: EngineInstance
    took_s: float


@dataclass(frozen=True, slots=True)
class Destroyed:
    """An instance is gone: as asked (no error), or because it could not be built."""

    instance_id: InstanceId
    took_s: float
    error: str = ""


Outcome = Built | Destroyed


class Builder:
    """The thread, its jobs and their outcomes."""

    def __init__(self, engine: Engine, note: CrashNote, ring: Callable[[], None]) -> None:
        """`ring` is called from the thread whenever an outcome waits."""
        self._engine = engine
        self._note = note
        self._ring = ring
        self._jobs: queue.SimpleQueue[Callable[[], Outcome]] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="builder", daemon=True).start()

    def load(self, instance_id: InstanceId, checkpoint: Path, options: LoadOptions) -> None:
        """Build and compile."""
        self._jobs.put(lambda: self._build(instance_id, checkpoint, options, None))

    def rest(self, instance: EngineInstance, instance_id: InstanceId, checkpoint: Path, options: LoadOptions) -> None:
        """Destroy, build and compile again: packed weights are given back only so."""
        self._jobs.put(lambda: self._build(instance_id, checkpoint, options, instance))

    def unload(self, instance: EngineInstance, instance_id: InstanceId) -> None:
        """Destroy."""
        self._jobs.put(lambda: self._destroy(instance_id, instance))

    def outcomes(self) -> list[Outcome]:
        """Return what has ended since the last call."""
        ended = []
        while not self._outcomes.empty():
            ended.append(self._outcomes.get())
        return ended

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            self._outcomes.put(job())
            # Nothing of a finished job may keep an instance alive until the next one comes.
            del job
            self._ring()

    def _build(
        self, instance_id: InstanceId, checkpoint: Path, options: LoadOptions, old: EngineInstance | None
    ) -> Outcome:
        began_s = time.monotonic()
        self._note.loading(instance_id)
        try:
            if old is not None:
                old.unload()
            instance = self._engine.load(checkpoint, options)
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises, the other instances go on
            return Destroyed(instance_id, time.monotonic() - began_s, explain(error))
        finally:
            self._note.loading(None)
        return Built(instance_id, instance, time.monotonic() - began_s)

    def _destroy(self, instance_id: InstanceId, instance: EngineInstance) -> Outcome:
        began_s = time.monotonic()
        try:
            instance.unload()
        except Exception as error:  # noqa: BLE001 - as above
            explain(error)
        return Destroyed(instance_id, time.monotonic() - began_s)


def explain(error: Exception) -> str:
    """One line for a person; the log gets it too, with the whole story unless it is an error that we meant."""
    if isinstance(error, LlmhostdError):
        log.error("%s", error)
        return str(error)
    line = f"the engine failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    log.error("%s", line, exc_info=error)
    return line
