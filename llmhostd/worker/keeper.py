"""Who brings weights into host memory and keeps them there, while nobody loads?

One thread, one model at a time. It waits while an instance loads: one reader at a time per node (ServerlessLLM §6.1).
Results wait until the device loop takes them.
"""

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from llmhostd.domain.errors import CheckpointError
from llmhostd.domain.ids import ModelName, NodeId
from llmhostd.domain.reports import WeightsKept
from llmhostd.engines.frames import KeepFrame
from llmhostd.loader.kept_weights import KeptWeights

_PAUSE_S = 0.02


class Keeper:
    """Weights that are kept on this node."""

    def __init__(self, node_id: NodeId, ring: Callable[[], None], loading: Callable[[], bool]) -> None:
        """`ring` is called whenever a report waits; `loading`: whether an instance loads at this moment."""
        self._node_id = node_id
        self._ring = ring
        self._loading = loading
        self._kept: dict[ModelName, KeptWeights] = {}
        self._asked: queue.SimpleQueue[KeepFrame] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[KeepFrame, KeptWeights | None, WeightsKept]] = queue.SimpleQueue()
        self._wanted: dict[ModelName, KeepFrame] = {}
        threading.Thread(target=self._work, name="keeper", daemon=True).start()

    def keep(self, frame: KeepFrame) -> None:
        """Begin to keep a model's weights, unless they are kept."""
        self._wanted[frame.command.model] = frame
        self._asked.put(frame)

    def release(self, model: ModelName) -> None:
        """Keep them no longer; one that is on its way ends."""
        self._wanted.pop(model, None)
        kept = self._kept.pop(model, None)
        if kept is not None:
            kept.release()

    def reports(self) -> list[WeightsKept]:
        """What has ended since the last call; what nobody wants any more is let go."""
        told = []
        while not self._done.empty():
            frame, kept, report = self._done.get()
            model = frame.command.model
            if self._wanted.get(model) is not frame:
                if kept is not None:
                    kept.release()
                continue
            self.release(model)
            if kept is not None:
                self._kept[model], self._wanted[model] = kept, frame
            told.append(report)
        return told

    def _work(self) -> None:
        while True:
            frame = self._asked.get()
            self._done.put((frame, *self._bring_in(frame)))
            self._ring()

    def _bring_in(self, frame: KeepFrame) -> tuple[KeptWeights | None, WeightsKept]:
        model, kept_bytes = frame.command.model, 0
        try:
            kept = KeptWeights(Path(frame.checkpoint))
            pieces = kept.bring_in()
            while self._wanted.get(model) is frame and (so_far := next(pieces, None)) is not None:
                kept_bytes = so_far
                while self._loading():
                    time.sleep(_PAUSE_S)
        except CheckpointError as error:
            return None, WeightsKept(node_id=self._node_id, model=model, kept_bytes=0, because=str(error))
        return kept, WeightsKept(node_id=self._node_id, model=model, kept_bytes=kept_bytes, because=kept.unlocked)
