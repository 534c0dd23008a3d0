"""Which adapters are open in this worker, and which requests wait until theirs is?

Reading one takes the disk's time, which the device must not wait for: a thread does it. Those used last stay open: each
is a view of the page cache, a few MB of that, and a file descriptor; the disk cannot have the room of a file that was
deleted before it is closed.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from llmhostd.domain.errors import CheckpointError
from llmhostd.domain.ids import RequestId
from llmhostd.domain.model import Architecture
from llmhostd.engines.frames import AdapterFile, StageFrame, SubmitFrame
from llmhostd.loader.adapter import AdapterWeights, verify_adapter
from llmhostd.worker.loads import explain

_KEPT = 256
"""So many stay open, beside those that requests have."""

_Opened = tuple[AdapterFile, AdapterWeights | str]
"""Weights, or why there are none."""


class Adapters:
    """Adapters by identity."""

    def __init__(self, ring: Callable[[], None], kept: int = _KEPT) -> None:
        """`ring` is called from the thread whenever one was opened, or could not be."""
        self._ring = ring
        self._kept = kept
        self._open: dict[str, AdapterWeights] = {}
        """The least recently used first."""
        self._waiting: dict[str, dict[RequestId, SubmitFrame | StageFrame]] = {}
        """By identity, in order of arrival."""
        self._wanted: queue.SimpleQueue[tuple[AdapterFile, Architecture]] = queue.SimpleQueue()
        self._opened: queue.SimpleQueue[_Opened] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="adapters", daemon=True).start()

    def of(self, frame: SubmitFrame | StageFrame) -> AdapterWeights | None:
        """What a request is computed with, right after `waits` said no, or `opened` named it."""
        if frame.adapter is None:
            return None
        identity = frame.adapter.identity
        weights = self._open[identity] = self._open.pop(identity)
        return weights

    def waits(self, frame: SubmitFrame | StageFrame, base: Architecture) -> bool:
        """Whether a request must wait until its adapter for such a base is open; `opened` tells then."""
        wanted = frame.adapter
        if wanted is None:
            return False
        known = self._open.get(wanted.identity)
        if known is not None and known.unchanged:
            return False
        self._open.pop(wanted.identity, None)  # somebody wrote to it: whoever has it goes on with what it was
        if wanted.identity not in self._waiting:
            self._wanted.put((wanted, base))
        self._waiting.setdefault(wanted.identity, {})[frame.command.request.id] = frame
        return True

    def leaves(self, request_id: RequestId) -> SubmitFrame | StageFrame | None:
        """Let a request wait no longer; None: it did not."""
        frames = (waiting.pop(request_id, None) for waiting in self._waiting.values())
        return next((frame for frame in frames if frame is not None), None)

    def opened(self) -> Sequence[tuple[SubmitFrame | StageFrame, str]]:
        """Return the requests that need not wait any more, each with why its adapter cannot be used; empty: it can."""
        while len(self._open) > self._kept:
            del self._open[next(iter(self._open))]
        ended: list[tuple[SubmitFrame | StageFrame, str]] = []
        while not self._opened.empty():
            file, found = self._opened.get()
            error = found if isinstance(found, str) else ""
            if isinstance(found, AdapterWeights):
                self._open[file.identity] = found
            ended += ((frame, error) for frame in self._waiting.pop(file.identity).values())
        return ended

    def _work(self) -> None:
        while True:
            file, base = self._wanted.get()
            self._opened.put((file, _opened(file, base)))
            self._ring()


def _opened(file: AdapterFile, base: Architecture) -> AdapterWeights | str:
    try:
        return verify_adapter(Path(file.path), base, file.identity)
    except CheckpointError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - a broken adapter is one request's trouble, not the worker's
        return explain(error)
