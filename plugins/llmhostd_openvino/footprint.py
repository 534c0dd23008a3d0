"""How many bytes does an instance hold beside its KV?

The engine does not say, so this is arithmetic, checked against the process's memory in the tests: graph objects until
the first run, then packed weights and the scratch memory of the largest iteration so far. The embedding is read from
the file's mapping and held by nobody.
"""

from functools import cached_property

from llmhostd.checkpoints.tensors import linear_shapes
from llmhostd.domain.model import ComputePrecision, ModelShape, WeightFormat
from llmhostd.engines.interface import ModuleRange

_WARM_BYTES = 6_000_000
_WARM_BYTES_PER_LAYER = 600_000

_INT8_WIDTH = 1.0
_INT4_WIDTH = 0.5 + 5 / 128
"""Values, an f32 scale and a zero point per group."""


class Footprint:
    """Follows one instance through its iterations."""

    def __init__(self, shape: ModelShape, modules: ModuleRange, *, in_place: bool = False) -> None:
        """`in_place`: it begins with weights as they lie in their store."""
        self._shape = shape
        self._modules = modules
        self._in_place = in_place
        self._tokens = self._rows = 0

    def ran(self, tokens: int, rows: int) -> bool:
        """Hear that an iteration of so many tokens and logit rows ran. Returns whether it was the first."""
        first = self._tokens == 0
        self._tokens, self._rows = max(self._tokens, tokens), max(self._rows, rows)
        return first

    def held_bytes(self) -> int:
        """Estimate what is held now."""
        warm = _WARM_BYTES + _WARM_BYTES_PER_LAYER * (self._modules.end - self._modules.first)
        has_run = self._tokens > 0
        # f32 weights computed in f32 are packed when they are compiled. What is used in place is packed soon after the
        # first run; until then the file's pages are in use instead.
        packed = has_run or (self._linear_width() == 4.0 and not self._in_place)
        return warm + (self._packed_bytes if packed else 0) + (self._scratch_bytes() if has_run else 0)

    @cached_property
    def _packed_bytes(self) -> int:
        a, modules = self._shape.architecture, self._modules
        layer = sum(outputs * inputs for outputs, inputs in linear_shapes(a).values())
        head = a.vocab * a.hidden if modules.head else 0
        layers = layer * (modules.end - modules.first)
        return int(layers * self._linear_width() + head * self._head_width())

    def _scratch_bytes(self) -> int:
        a = self._shape.architecture
        per_token = 4 * a.hidden + 2 * a.intermediate + (a.heads + 2 * a.kv_heads) * a.head_dim
        width = 4 if self._shape.compute is ComputePrecision.BF16 else 8
        logits = 4 * self._rows * a.vocab if self._modules.head else 0
        return self._tokens * per_token * width + logits

    def _linear_width(self) -> float:
        """Bytes per packed weight of a layer."""
        match self._shape.weights:
            case WeightFormat.INT8:
                return _INT8_WIDTH
            case WeightFormat.INT4:
                return _INT4_WIDTH
            case WeightFormat.F32 if self._shape.compute is ComputePrecision.F32:
                return 4.0
        return 2.0

    def _head_width(self) -> float:
        """Bytes per packed weight of the head, which int4 checkpoints keep in int8 and tied ones in bf16."""
        if self._shape.weights not in (WeightFormat.INT8, WeightFormat.INT4):
            return self._linear_width()
        return 2.0 if self._shape.architecture.tied_embeddings else _INT8_WIDTH
