"""Who compiles the graphs that pack weights, while instances compute on their stores?

One thread for all instances, in order, at low priority: beside a neighbour that decodes, compiling at the same
priority takes half of a core from it.
"""

import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from llmhostd_openvino.part import Part, first_line

log = logging.getLogger(__name__)

_NICE = 10


class Packer:
    """Makes parts' packed graphs."""

    def __init__(self) -> None:
        # An executor, because a process that ends waits for its thread: one that ends within native code takes it down.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="packer", initializer=_yield_to_others)

    def pack_soon(self, parts: Sequence[Part]) -> None:
        """Make them in the background, the first of them first; each is taken when it is there."""
        if any(part.packs_later for part in parts):
            self._thread.submit(self.pack, parts)

    def pack(self, parts: Sequence[Part]) -> None:
        """Make those now that are not there. One that cannot be packed stays as it is, and the log says why."""
        for part in parts:
            try:
                part.make_packed()
            except RuntimeError as error:
                layers = part.modules
                log.warning("layers %d to %d compute unpacked: %s", layers.first, layers.end, first_line(error))
                part.stay_unpacked()


def _yield_to_others() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
