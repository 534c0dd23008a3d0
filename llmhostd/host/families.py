"""Which instances may serve which models? A base and its adapters are one family: they share weights and batches."""

from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.model import AdapterSlots, LowRankAdapter, ModelShape, ModelSpec


def computes(node: NodeSpec, model: ModelSpec) -> bool:
    """Whether a node's engine can compute a model at all."""
    return model.adapter is None or node.adapters


def shape_on(node: NodeSpec, model: ModelSpec) -> ModelShape:
    """Return what is loaded on a node for a model: with room for adapters where they are computed."""
    return model.shape if node.adapters else model.shape.without_room()


def may_serve(loaded: ModelShape, model: ModelSpec) -> bool:
    """Whether what is loaded may take requests of a model: it is the same checkpoint, and has room for its adapter.

    How much room a base was loaded with is nothing to its own requests, nor to those of adapters that fit: they go on
    where they are until it is loaded anew.
    """
    if loaded.without_room() != model.shape.without_room():
        return False
    return model.adapter is None or (loaded.adapters is not None and holds(loaded.adapters, model.adapter))


def holds(room: AdapterSlots, adapter: LowRankAdapter) -> bool:
    """Whether an adapter fits into a slot."""
    return adapter.rank <= room.rank and all(name in room.modules for name in adapter.modules)
