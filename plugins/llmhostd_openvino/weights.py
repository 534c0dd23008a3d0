"""How does a stored weight become a graph node without being copied?

Constants share the checkpoint's mapping. Their Convert is marked as decompression, or the plugin would fold it into an
f32 copy (three times the memory). The mapping must outlive the first inference, which packs the weights.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import openvino.opset13 as ops
from openvino.op import Constant, Parameter

from llmhostd.domain.model import WeightFormat
from llmhostd.loader.safetensors import Checkpoint
from llmhostd_openvino.ops import int32, ints64

_TYPES = {"BF16": ov.Type.bf16, "F16": ov.Type.f16, "F32": ov.Type.f32, "I8": ov.Type.i8, "U8": ov.Type.u8}


class StoredWeights:
    """The weights of a graph under construction: see `graph.WeightSource`."""

    parameters: Sequence[Parameter] = ()

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def rows(self, name: str, ids: ov.Node) -> ov.Node:
        """See `graph.WeightSource`."""
        return ops.gather(self._plain(name), ids, int32(0))

    def product(self, x: ov.Node, name: str) -> ov.Node:
        """See `graph.WeightSource`."""
        return ops.matmul(x, self._linear(name), False, True)

    def joint_product(self, x: ov.Node, names: Sequence[str]) -> ov.Node | None:
        """See `graph.WeightSource`. Plain weights of a store lie one behind another."""
        rows = self._checkpoint.rows(names)
        dtype = self._checkpoint.dtype(names[0]) if rows is not None else ""
        if rows is None or dtype == "F32":  # of large f32 weights the plugin would keep a second form
            return None
        view = ov.Tensor(rows.reshape(-1), ov.Shape(list(rows.shape)), element_type(dtype))
        right = _compressed(ops.convert(Constant(view, shared_memory=True), "f32"))
        return ops.matmul(x, right, False, True)

    def _plain(self, name: str) -> ov.Node:
        """Make the f32-typed node of a tensor stored as float."""
        if self._checkpoint.dtype(name) == "F32":
            return self._constant(name)
        return _compressed(ops.convert(self._constant(name), "f32"))

    def vector(self, name: str) -> ov.Node:
        """See `graph.WeightSource`. Converted now, so that no type is left to chance."""
        return ops.constant(as_floats(self._checkpoint.array(name), self._checkpoint.dtype(name)))

    def _linear(self, name: str) -> ov.Node:
        """Make the f32-typed node `[outputs, inputs]` of a linear weight, plain or quantised."""
        if name in self._checkpoint:
            return self._plain(name)
        if name + ".zp" not in self._checkpoint:
            rows = ops.multiply(ops.convert(self._constant(name + ".q"), "f16"), self._constant(name + ".scale"))
            return _compressed(ops.convert(rows, "f32"))
        return self._groups(name)

    def _groups(self, name: str) -> ov.Node:
        """int4: (q - zero point) * scale, per group of inputs."""
        quantization = self._checkpoint.quantization
        if quantization is None or quantization.format is not WeightFormat.INT4:
            raise AssertionError(f"{name}: zero points without an int4 configuration")
        outputs, half = self._checkpoint.array(name + ".q").shape
        inputs, group = half * 2, quantization.group
        groups = inputs // group
        values = self._constant(name + ".q", [outputs, groups, group], ov.Type.u4)
        zero_points = self._constant(name + ".zp", [outputs, groups, 1], ov.Type.u4)
        centred = ops.subtract(ops.convert(values, "f16"), ops.convert(zero_points, "f16"))
        scaled = ops.multiply(centred, self._constant(name + ".scale", [outputs, groups, 1]))
        return _compressed(ops.convert(ops.reshape(scaled, ints64([outputs, inputs]), False), "f32"))

    def _constant(self, name: str, shape: list[int] | None = None, element: ov.Type | None = None) -> Constant:
        values = self._checkpoint.array(name)
        element = element or element_type(self._checkpoint.dtype(name))
        view = ov.Tensor(values.reshape(-1), ov.Shape(shape or list(values.shape)), element)
        return Constant(view, shared_memory=True)


def element_type(dtype: str) -> ov.Type:
    """Return the engine's type for a stored one, in safetensors' words."""
    return _TYPES[dtype]


def as_floats(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    """Copy a small stored tensor as f32."""
    if dtype == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return np.array(values, np.float32)


def _compressed(node: ov.Node) -> ov.Node:
    node.get_rt_info()["decompression_0"] = ""
    return node
