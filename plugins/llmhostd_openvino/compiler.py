"""How does a range of modules become something that computes?

Either on a graph whose weights are its inputs, which is compiled once for all models of a shape and kept; or on one
that packs its weights, which is compiled for this model.
"""

import time
from collections.abc import Hashable
from dataclasses import dataclass

import openvino as ov

from llmhostd.domain.model import ComputePrecision
from llmhostd.engines.interface import LoadOptions, ModuleRange
from llmhostd.loader.safetensors import Checkpoint
from llmhostd_openvino.graph import build_graph
from llmhostd_openvino.low_rank import LowRank
from llmhostd_openvino.paged_attention import KV_TYPES
from llmhostd_openvino.part import Part
from llmhostd_openvino.slot_factors import SlotFactors, factor_type
from llmhostd_openvino.weight_inputs import StoredInputs, WeightInputs, canonical
from llmhostd_openvino.weights import StoredWeights

_DEVICE = "CPU"

_DYNAMIC_QUANTIZATION_GROUP = 128
"""Activations are quantised in groups of this many when quantised weights are computed under f32, so that products use
VNNI instructions. It does nothing to plain weights and nothing under bf16."""

_KEPT_GRAPHS = 32
"""Graphs without weights that are kept for the next load: a few MB each, a handful per shape."""

PART_BYTES = 256 << 20
"""Weights of a part, about: one iteration packs so much beside its work (a tenth of a second on two cores). A chain of
parts is 2 to 8 % slower than one graph of all at batches of several requests."""


@dataclass
class Spent:
    """Seconds so far."""

    build_s: float = 0.0
    compile_s: float = 0.0


class Compiler:
    """Compiles for one node. From any thread: at worst two threads compile the same graph."""

    def __init__(self) -> None:
        self._core = ov.Core()
        self._graphs: dict[Hashable, ov.CompiledModel] = {}
        """The least recently used first."""

    def packing(self, opened: Checkpoint, modules: ModuleRange, options: LoadOptions, spent: Spent) -> Part:
        """Make a part whose first run packs its weights. Raises CheckpointError, or RuntimeError as the engine does."""
        factors = _factors(opened, modules, options)
        return Part(modules, self._packing(opened, modules, options, spent), factors=factors)

    def in_place(self, opened: Checkpoint, modules: ModuleRange, options: LoadOptions, spent: Spent) -> Part:
        """Make a part that computes on its store, once that is read, until its weights are packed.

        Raises as `packing` does.
        """
        architecture, same = opened.architecture, modules
        if options.adapters is None:
            architecture, same = canonical(architecture, modules)
        key = (architecture, same, options.compute, options.kv, options.threads, options.adapters)
        compiled = self._graphs.pop(key, None)
        if compiled is None:
            began_s = time.monotonic()
            weights = WeightInputs(architecture, options.compute)
            graph = build_graph(architecture, weights, same, _low_rank(opened, modules, options))
            spent.build_s += time.monotonic() - began_s
            compiled = self._compile(graph, options, spent)
        self._keep(key, compiled)
        stored = StoredInputs(opened, compiled, modules.first - same.first)
        factors = _factors(opened, modules, options)
        return Part(modules, compiled, stored, lambda: self._packing(opened, modules, options, Spent()), factors)

    def _packing(
        self, opened: Checkpoint, modules: ModuleRange, options: LoadOptions, spent: Spent
    ) -> ov.CompiledModel:
        began_s, waited_s = time.monotonic(), _waited_s(opened)
        low_rank = _low_rank(opened, modules, options)
        graph = build_graph(opened.architecture, StoredWeights(opened), modules, low_rank)
        spent.build_s += time.monotonic() - began_s - (_waited_s(opened) - waited_s)
        return self._compile(graph, options, spent)

    def _compile(self, graph: ov.Model, options: LoadOptions, spent: Spent) -> ov.CompiledModel:
        began_s = time.monotonic()
        compiled = self._core.compile_model(graph, _DEVICE, _properties(options))
        spent.compile_s += time.monotonic() - began_s
        return compiled

    def _keep(self, key: Hashable, compiled: ov.CompiledModel) -> None:
        """Keep what was used last."""
        self._graphs[key] = compiled
        while len(self._graphs) > _KEPT_GRAPHS:
            del self._graphs[next(iter(self._graphs))]


def cut(modules: ModuleRange, opened: Checkpoint, part_bytes: int) -> list[ModuleRange]:
    """Cut a range into runs of layers, as many in each, the embedding with the first and the head with the last."""
    layers = modules.end - modules.first
    if not layers:
        return [modules]
    stored_bytes = opened.description.weight_bytes * layers // opened.architecture.layers
    each = -(-layers // min(layers, max(1, stored_bytes // part_bytes)))
    return [
        ModuleRange(
            first=first,
            end=min(first + each, modules.end),
            embedding=modules.embedding and first == modules.first,
            head=modules.head and first + each >= modules.end,
        )
        for first in range(modules.first, modules.end, each)
    ]


def _properties(options: LoadOptions) -> dict[str, str | int]:
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": options.threads,
        "INFERENCE_PRECISION_HINT": str(options.compute),
        "KV_CACHE_PRECISION": KV_TYPES[options.kv],
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": _DYNAMIC_QUANTIZATION_GROUP,
    }


def _waited_s(opened: Checkpoint) -> float:
    return opened.reader.waited_s if opened.reader else 0.0


def _low_rank(opened: Checkpoint, modules: ModuleRange, options: LoadOptions) -> LowRank | None:
    if options.adapters is None:
        return None
    f32 = options.compute is ComputePrecision.F32
    return LowRank(options.adapters, opened.architecture, modules, factor_type(f32))


def _factors(opened: Checkpoint, modules: ModuleRange, options: LoadOptions) -> SlotFactors | None:
    if options.adapters is None:
        return None
    return SlotFactors(options.adapters, opened.architecture, modules, options.compute)
