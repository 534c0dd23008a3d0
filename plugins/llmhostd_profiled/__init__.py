"""The profiled engine: takes the time that a profile says, and computes tokens that anybody can check.

It stands in for devices that a box does not have: a daemon with a real CPU node and a `profiled` GPU node routes,
moves and times requests as it would with the GPU. It holds no weights. Found by entry point `llmhostd.engines`.
"""

from typing import TYPE_CHECKING

from llmhostd.domain.errors import OperatorError
from llmhostd.domain.hardware import NodeKind, NodeSpec
from llmhostd.domain.model import ComputePrecision, KvPrecision, ModelShape
from llmhostd.domain.profile import Profile
from llmhostd_profiled.times import read_times

if TYPE_CHECKING:
    from llmhostd.engines.interface import Engine, Precisions

PRECISIONS = {
    ComputePrecision.BF16: (KvPrecision.BF16, KvPrecision.U8),
    ComputePrecision.F32: (KvPrecision.F32, KvPrecision.U8),
}


class Plugin:
    """What the entry point names: an `engines.interface.EnginePlugin` and `DescribedPlugin`."""

    kinds: tuple[NodeKind, ...] = ()
    """It drives no device: only `[[nodes]]` that name it make it one."""

    def __call__(self, node: NodeSpec) -> "Engine":
        """See `EnginePlugin`."""
        from llmhostd_profiled.engine import ProfiledEngine

        return ProfiledEngine(node, read_times(node.profile))

    def check(self, node: NodeSpec) -> None:
        """See `DescribedPlugin.check`."""
        if not node.profile:
            raise OperatorError("profile: is empty; engine profiled takes its times from a file")
        try:
            read_times(node.profile)
        except OperatorError as error:
            raise OperatorError(f"profile: {error}") from error

    def precisions(self, node: NodeSpec) -> "Precisions":
        """See `EnginePlugin.precisions`."""
        del node
        return PRECISIONS

    def profile(self, node: NodeSpec, shape: ModelShape) -> Profile | None:
        """See `DescribedPlugin.profile`."""
        return read_times(node.profile).profile_of(shape, node.hardware_key)


open_engine = Plugin()
