"""How does a checkpoint become an instance of a device that is not there?"""

import ctypes
import time
from pathlib import Path

from llmhostd.domain.errors import EngineError, OperatorError
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.model import Architecture
from llmhostd.engines.interface import EngineFacts, EngineInstance, LoadOptions, ModuleRange
from llmhostd.loader.safetensors import describe
from llmhostd_profiled.instance import ProfiledInstance
from llmhostd_profiled.times import Times

_PR_SET_TIMERSLACK = 29


class ProfiledEngine:
    """An `engines.interface.Engine` for one node."""

    def __init__(self, node: NodeSpec, times: Times) -> None:
        self._node = node
        self._times = times
        # The kernel ends sleeps up to 50 us late to save power, which would be a tenth of a small model's iteration.
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)

    def facts(self) -> EngineFacts:
        """See `Engine.facts`."""
        from llmhostd_profiled import PRECISIONS

        return EngineFacts(
            name="profiled",
            version="1",
            compute=tuple(PRECISIONS),
            features=(f"times from {self._node.profile}",),
            caveats=("no model is computed here: times come from a profile, tokens from a fixed function",),
        )

    def load(self, checkpoint: Path, options: LoadOptions) -> EngineInstance:
        """See `Engine.load`. Reads the checkpoint's headers and takes the time that the profile says."""
        began_s = time.monotonic()
        if options.adapters is not None:
            raise EngineError("engine profiled computes no adapters")
        described = describe(checkpoint)
        modules = options.modules or ModuleRange(first=0, end=described.architecture.layers)
        _check_range(modules, described.architecture)
        shape = described.shape(options.compute, options.kv)
        try:
            profile = self._times.profile_of(shape, self._node.hardware_key)
        except OperatorError as error:
            raise EngineError(str(error)) from error
        part = (modules.end - modules.first) / described.architecture.layers
        time.sleep(max(0.0, part * profile.load_s - (time.monotonic() - began_s)))
        return ProfiledInstance(shape, modules, profile, self._node)


def _check_range(modules: ModuleRange, architecture: Architecture) -> None:
    if not 0 <= modules.first <= modules.end <= architecture.layers:
        raise EngineError(
            f"layers {modules.first} to {modules.end} are not a range of this model's {architecture.layers} layers"
        )
    if modules.first == modules.end and not (modules.embedding or modules.head):
        raise EngineError("an empty range of modules")
