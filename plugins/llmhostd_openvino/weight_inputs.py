"""How can weights be used where they lie, by a graph that was compiled before they were read?

The graph's weights are inputs, which each instance points at its own mapped store. So nothing is packed and nothing
copied before the first token; one compiled graph serves every run of layers, and every model, of the same shape.
A product with a right side that is an input reads it as fast as a packed one for one token, and for hundreds; between
them it takes up to twice as long (tests/bench/test_cold_start.py), so an instance that goes on computing packs.
"""

import re
from collections.abc import Mapping, Sequence

import msgspec
import openvino as ov
import openvino.opset13 as ops
from openvino.op import Parameter

from llmhostd.checkpoints.tensors import expected_tensors
from llmhostd.domain.model import Architecture, ComputePrecision
from llmhostd.engines.interface import ModuleRange
from llmhostd.loader.mapped_reader import MappedReader
from llmhostd.loader.safetensors import Checkpoint
from llmhostd_openvino.ops import int32, ints64, parameter
from llmhostd_openvino.weights import as_floats, element_type

_STORED = {ComputePrecision.BF16: "BF16", ComputePrecision.F32: "F32"}
_PREFIXES = ("model.", "lm_head.")
"""Names of tensors begin so, and of no other input."""
_LAYER = re.compile(r"(?<=^model\.layers\.)\d+")


class WeightInputs:
    """The weights of a graph under construction: see `graph.WeightSource`."""

    def __init__(self, architecture: Architecture, compute: ComputePrecision) -> None:
        self._element = ov.Type.f32 if compute is ComputePrecision.F32 else ov.Type.bf16
        self._shapes = {spec.name: spec.shape for spec in expected_tensors(architecture)}
        self._made: dict[str, Parameter] = {}

    @property
    def parameters(self) -> list[Parameter]:
        """All that were asked for."""
        return list(self._made.values())

    def rows(self, name: str, ids: ov.Node) -> ov.Node:
        """See `graph.WeightSource`."""
        return self._floats(ops.gather(self._input(name, self._element), ids, int32(0)))

    def vector(self, name: str) -> ov.Node:
        """See `graph.WeightSource`."""
        return self._input(name, ov.Type.f32)

    def product(self, x: ov.Node, name: str) -> ov.Node:
        """See `graph.WeightSource`."""
        product = ops.matmul(x, self._floats(self._input(name, self._element)), False, True)
        kept = [0] * (product.get_output_partial_shape(0).rank.get_length() - 1)
        return ops.reshape(product, ints64([*kept, self._shapes[name][0]]), True)

    def joint_product(self, x: ov.Node, names: Sequence[str]) -> ov.Node | None:  # noqa: ARG002 - the contract's names
        """See `graph.WeightSource`. Each is an input of its own."""
        return None

    def _input(self, name: str, element: ov.Type) -> Parameter:
        if name not in self._made:
            # The plugin makes room for inputs of known size, which nobody would use: so their rows are not told.
            shape = self._shapes[name]
            self._made[name] = parameter(element, [-1, *shape[1:]] if len(shape) > 1 else shape, name)
        return self._made[name]

    def _floats(self, node: ov.Node) -> ov.Node:
        return node if self._element == ov.Type.f32 else ops.convert(node, "f32")


def usable_in_place(checkpoint: Checkpoint, compute: ComputePrecision) -> bool:
    """Whether all matrices lie in memory as the arithmetic wants them. Only a store's do not change under our hands."""
    stored = {spec.dtype for spec in checkpoint.description.tensors.values() if len(spec.shape) > 1}
    return checkpoint.reader is not None and stored == {_STORED[compute]}


def canonical(a: Architecture, modules: ModuleRange) -> tuple[Architecture, ModuleRange]:
    """Name the range as every range that computes the same is named: its layers counted from 0."""
    layers = modules.end - modules.first
    windowed_from = 0 if a.sliding_window_tokens is None else max(0, a.sliding_from_layer - modules.first)
    same = msgspec.structs.replace(
        a, layers=layers, sliding_from_layer=min(windowed_from, layers), bos_token_id=None, eos_token_ids=()
    )
    return same, msgspec.structs.replace(modules, first=0, end=layers)


class StoredInputs:
    """What the weight inputs of one graph are to be in one store, of which not all may have been read yet."""

    def __init__(self, checkpoint: Checkpoint, compiled: ov.CompiledModel, shift: int) -> None:
        """`shift`: which layer of the checkpoint is the graph's layer 0."""
        names = (port.get_any_name() for port in compiled.inputs)
        self._checkpoint = checkpoint
        self._stored = {name: _stored_name(name, shift) for name in names if name.startswith(_PREFIXES)}
        self._end = max(checkpoint.description.tensors[name].end for name in self._stored.values())

    @property
    def there(self) -> bool:
        """Whether all of them are in memory and checked."""
        return _reader(self._checkpoint).read_bytes >= self._end

    def wait(self) -> None:
        """Wait until they are. Raises CheckpointError when what was read is damaged."""
        _reader(self._checkpoint).wait(self._end)

    def views(self) -> Mapping[str, ov.Tensor]:
        """Return them where they lie, once they are there; vectors are copied as f32. Raises as `wait`.

        The checkpoint must outlive them.
        """
        return {name: _view(self._checkpoint, stored) for name, stored in self._stored.items()}


def _reader(checkpoint: Checkpoint) -> MappedReader:
    if checkpoint.reader is None:
        raise AssertionError("only a store is used in place")
    return checkpoint.reader


def _stored_name(name: str, shift: int) -> str:
    return _LAYER.sub(lambda layer: str(int(layer[0]) + shift), name)


def _view(checkpoint: Checkpoint, name: str) -> ov.Tensor:
    values = checkpoint.array(name)
    if values.ndim == 1:
        return ov.Tensor(as_floats(values, checkpoint.dtype(name)))
    return ov.Tensor(values.reshape(-1), ov.Shape(list(values.shape)), element_type(checkpoint.dtype(name)))
