"""The OpenVINO engine: decoder graphs built by hand from safetensors, with paged attention, on CPUs.

Found by entry point `llmhostd.engines`. Nothing outside this package knows OpenVINO.
"""

from llmhostd.domain.hardware import NodeSpec
from llmhostd.engines.interface import Engine


def open_engine(node: NodeSpec) -> Engine:
    """Open the engine for a CPU node. Importing OpenVINO takes a moment, so it waits until somebody computes."""
    from llmhostd_openvino.engine import OpenVinoEngine

    return OpenVinoEngine(node)
