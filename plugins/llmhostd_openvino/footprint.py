"""How many bytes does an instance hold beside its KV?

The engine does not say, so this is arithmetic checked against the process's memory in the tests: nothing but graph
objects until the first run, then packed weights and the scratch memory of the largest iteration so far.
"""

from llmhostd.checkpoints.tensors import linear_shapes
from llmhostd.domain.model import ComputePrecision, ModelShape, WeightFormat
from llmhostd.engines.interface import ModuleRange

_WARM_BYTES = 12_000_000
_WARM_BYTES_PER_LAYER = 400_000


class Footprint:
    """Follows one instance through its iterations."""

    def __init__(self, shape: ModelShape, modules: ModuleRange) -> None:
        self._shape = shape
        self._modules = modules
        self._tokens = self._rows = 0

    def ran(self, tokens: int, rows: int) -> bool:
        """Hear that an iteration of so many tokens and logit rows ran. Returns whether it was the first."""
        first = self._tokens == 0
        self._tokens, self._rows = max(self._tokens, tokens), max(self._rows, rows)
        return first

    def held_bytes(self) -> int:
        """Estimate what is held now."""
        warm = _WARM_BYTES + _WARM_BYTES_PER_LAYER * (self._modules.end - self._modules.first)
        return warm + (self._packed_bytes() + self._scratch_bytes() if self._tokens else 0)

    def _packed_bytes(self) -> int:
        a, modules = self._shape.architecture, self._modules
        per_layer = sum(outputs * inputs for outputs, inputs in linear_shapes(a).values())
        linear = per_layer * (modules.end - modules.first)
        head = a.vocab * a.hidden if modules.head else 0
        return int(linear * _packed_width(self._shape)) + int(head * _packed_width(self._shape))

    def _scratch_bytes(self) -> int:
        a = self._shape.architecture
        per_token = 4 * (4 * a.hidden + 2 * a.intermediate + (a.heads + 2 * a.kv_heads) * a.head_dim)
        logits = 4 * self._rows * a.vocab if self._modules.head else 0
        return self._tokens * per_token + logits


def _packed_width(shape: ModelShape) -> float:
    """Bytes per packed weight."""
    match shape.weights:
        case WeightFormat.INT8:
            return 1.0
        case WeightFormat.INT4:
            return 0.55
    return 2.0 if shape.compute is ComputePrecision.BF16 else 4.0
