"""How does a checkpoint become a warm instance on this node's CPU?"""

import time
from pathlib import Path

import openvino as ov

from llmhostd.checkpoints.adapter import linear_names
from llmhostd.domain.errors import EngineError
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.model import AdapterSlots, Architecture, ComputePrecision
from llmhostd.domain.reports import LoadStages
from llmhostd.engines.interface import EngineFacts, EngineInstance, LoadOptions, ModuleRange
from llmhostd.loader.safetensors import Checkpoint, open_checkpoint
from llmhostd_openvino.facts import engine_facts
from llmhostd_openvino.graph import build_graph
from llmhostd_openvino.instance import OpenVinoInstance, first_line
from llmhostd_openvino.low_rank import LowRank
from llmhostd_openvino.paged_attention import KV_TYPES
from llmhostd_openvino.precisions import KV_CHOICES, cpu_flags, hardware_precisions
from llmhostd_openvino.slot_factors import SlotFactors, factor_type

_DEVICE = "CPU"

_DYNAMIC_QUANTIZATION_GROUP = 128
"""Activations are quantised in groups of this many when quantised weights are computed under f32, so that products use
VNNI instructions. It does nothing to plain weights and nothing under bf16."""


class OpenVinoEngine:
    """An `engines.interface.Engine` for one CPU node."""

    def __init__(self, node: NodeSpec) -> None:
        self._node = node
        self._core = ov.Core()

    def facts(self) -> EngineFacts:
        """See `Engine.facts`."""
        return engine_facts(self._core)

    def load(self, checkpoint: Path, options: LoadOptions) -> EngineInstance:
        """See `Engine.load`."""
        _check_precisions(options)
        opened = open_checkpoint(checkpoint)
        modules = options.modules or ModuleRange(first=0, end=opened.architecture.layers)
        _check_range(modules, opened.architecture)
        low_rank = factors = None
        if options.adapters is not None:
            room = (options.adapters, opened.architecture, modules)
            low_rank = LowRank(*room, factor_type(options.compute is ComputePrecision.F32))
            factors = SlotFactors(*room, options.compute)
        opened.prefetch()
        began_s = time.monotonic()
        try:
            graph = build_graph(opened, modules, low_rank)
            built_s = time.monotonic()
            compiled = self._core.compile_model(graph, _DEVICE, self._properties(options))
        except RuntimeError as error:
            raise EngineError(f"{checkpoint}: cannot be compiled: {first_line(error)}") from error
        shape = opened.shape(options.compute, options.kv)
        stages = _stages(opened, built_s - began_s, time.monotonic() - built_s)
        return OpenVinoInstance(compiled, opened, shape, modules, self._node.memory_bytes, stages, factors)

    def _properties(self, options: LoadOptions) -> dict[str, str | int]:
        return {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": options.threads,
            "INFERENCE_PRECISION_HINT": str(options.compute),
            "KV_CACHE_PRECISION": KV_TYPES[options.kv],
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": _DYNAMIC_QUANTIZATION_GROUP,
        }


def _stages(checkpoint: Checkpoint, build_s: float, compile_s: float) -> LoadStages:
    reader = checkpoint.reader
    if reader is None:
        return LoadStages(build_s=build_s, compile_s=compile_s)
    return LoadStages(
        read_s=reader.read_s,
        build_s=build_s - reader.waited_s,
        compile_s=compile_s,
        read_bytes=reader.read_bytes,
        disk_bytes=reader.disk_bytes,
    )


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
