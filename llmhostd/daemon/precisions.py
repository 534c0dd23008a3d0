"""Could any node here ever load a model in these precisions? Asked when it is added, not when somebody waits for it."""

from collections.abc import Sequence

from llmhostd.domain.errors import CallerError
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.model import ComputePrecision, KvPrecision, ModelShape
from llmhostd.engines.discovery import precisions_of


def check_precisions(shape: ModelShape, nodes: Sequence[NodeSpec]) -> None:
    """Ask the nodes' engines. Raises CallerError naming `compute` or `kv` and what to choose instead."""
    offered: dict[ComputePrecision, dict[KvPrecision, None]] = {}
    for node in nodes:
        offer = precisions_of(node)
        if offer is None:  # this engine decides at the load
            return
        for compute, kinds in offer.items():
            offered.setdefault(compute, {}).update(dict.fromkeys(kinds))
    kinds_here = offered.get(shape.compute)
    if kinds_here is None:
        raise CallerError(
            f"compute: no node here computes in {shape.compute}; choose {' or '.join(offered)}", field="compute"
        )
    if shape.kv not in kinds_here:
        others = [f"compute {one}" for one, kinds in offered.items() if shape.kv in kinds]
        choices = " or ".join([*kinds_here, *others])
        raise CallerError(f"kv: {shape.kv} does not go with compute {shape.compute}; choose {choices}", field="kv")
