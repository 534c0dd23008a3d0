"""How does a checkpoint become a warm instance on this node's CPU?"""

from pathlib import Path

from llmhostd.checkpoints.adapter import linear_names
from llmhostd.domain.errors import EngineError
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.model import AdapterSlots, Architecture
from llmhostd.engines.interface import EngineFacts, EngineInstance, LoadOptions, ModuleRange
from llmhostd.loader.safetensors import open_checkpoint
from llmhostd_openvino.compiler import PART_BYTES, Compiler, Spent, cut
from llmhostd_openvino.facts import engine_facts
from llmhostd_openvino.footprint import Footprint
from llmhostd_openvino.instance import OpenVinoInstance
from llmhostd_openvino.packer import Packer
from llmhostd_openvino.part import first_line
from llmhostd_openvino.precisions import KV_CHOICES, cpu_flags, hardware_precisions
from llmhostd_openvino.weight_inputs import usable_in_place


class OpenVinoEngine:
    """An `engines.interface.Engine` for one CPU node."""

    def __init__(self, node: NodeSpec, part_bytes: int = PART_BYTES) -> None:
        """`part_bytes`: weights that one iteration packs, at least, when they were used in place before."""
        self._node = node
        self._part_bytes = part_bytes
        self._compiler = Compiler()
        self._packer = Packer()

    def facts(self) -> EngineFacts:
        """See `Engine.facts`."""
        return engine_facts()

    def load(self, checkpoint: Path, options: LoadOptions) -> EngineInstance:
        """See `Engine.load`. What lies in memory as it is computed with is not packed yet.

        Only such weights can be computed with `early`, and only where there are parts that come before others.
        """
        _check_precisions(options)
        opened = open_checkpoint(checkpoint, options.arriving)
        modules = options.modules or ModuleRange(first=0, end=opened.architecture.layers)
        _check_range(modules, opened.architecture)
        opened.prefetch(options.crowded)
        spent, in_place = Spent(), usable_in_place(opened, options.compute)
        make = self._compiler.in_place if in_place else self._compiler.packing
        ranges = cut(modules, opened, self._part_bytes) if in_place else [modules]
        try:
            parts = [make(opened, one, options, spent) for one in ranges]
            if not (options.early and len(parts) > 1):
                for part in parts:
                    part.point()
        except RuntimeError as error:
            raise EngineError(f"{checkpoint}: cannot be compiled: {first_line(error)}") from error
        shape = opened.shape(options.compute, options.kv)
        footprint = Footprint(shape, modules, in_place=in_place)
        return OpenVinoInstance(parts, opened, shape, footprint, spent, self._packer, self._node.memory_bytes)


def _check_precisions(options: LoadOptions) -> None:
    allowed = KV_CHOICES[options.compute]
    if options.kv not in allowed:
        raise EngineError(
            f"kv {options.kv!s} does not go with compute {options.compute!s}; choose {' or '.join(map(str, allowed))}"
        )
    if options.compute not in hardware_precisions(cpu_flags()):
        raise EngineError(f"compute {options.compute!s} has no hardware support on this CPU; choose f32")
    if options.threads < 1:
        raise EngineError(f"threads must be at least 1, is {options.threads}")
    if options.adapters is not None:
        _check_adapters(options.adapters)


def _check_adapters(slots: AdapterSlots) -> None:
    if slots.slots < 1 or slots.rank < 1 or not slots.modules:
        raise EngineError(f"adapters need slots, a rank and modules, not {slots.slots}, {slots.rank}, {slots.modules}")
    unknown = [name for name in slots.modules if name not in linear_names()]
    if unknown:
        raise EngineError(f"adapters cannot update {', '.join(unknown)}; known: {', '.join(linear_names())}")


def _check_range(modules: ModuleRange, architecture: Architecture) -> None:
    if not 0 <= modules.first <= modules.end <= architecture.layers:
        raise EngineError(
            f"layers {modules.first} to {modules.end} are not a range of this model's {architecture.layers} layers"
        )
    if modules.first == modules.end and not (modules.embedding or modules.head):
        raise EngineError("an empty range of modules")
