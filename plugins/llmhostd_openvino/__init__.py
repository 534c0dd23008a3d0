"""The OpenVINO engine: decoder graphs built by hand from safetensors, with paged attention, on CPUs.

Found by entry point `llmhostd.engines`. Nothing outside this package knows OpenVINO.
"""

from typing import TYPE_CHECKING

from llmhostd.domain.errors import OperatorError
from llmhostd.domain.hardware import NodeKind, NodeSpec
from llmhostd_openvino import precisions

if TYPE_CHECKING:
    from llmhostd.engines.interface import Engine, Precisions


class Plugin:
    """What the entry point names: an `engines.interface.EnginePlugin`. Importing it is cheap."""

    kinds = (NodeKind.CPU,)
    adapters = True

    def __call__(self, node: NodeSpec) -> "Engine":
        """Open the engine for a CPU node. Importing OpenVINO takes a moment, so it waits until somebody computes."""
        from llmhostd_openvino.engine import OpenVinoEngine

        return OpenVinoEngine(node)

    def precisions(self, node: NodeSpec) -> "Precisions":
        """See `EnginePlugin.precisions`."""
        del node
        return {one: precisions.KV_CHOICES[one] for one in precisions.hardware_precisions(precisions.cpu_flags())}

    def check(self, node: NodeSpec) -> None:
        """See `DescribedPlugin.check`."""
        if node.kind is not NodeKind.CPU:
            raise OperatorError(f"kind: is {node.kind}; engine openvino computes on CPUs only")
        if node.profile:
            raise OperatorError("profile: engine openvino measures how long things take; leave it out")


open_engine = Plugin()
