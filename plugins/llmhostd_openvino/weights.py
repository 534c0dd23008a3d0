"""How does a stored weight become a graph node without being copied?

Constants share the checkpoint's mapping. Their Convert is marked as decompression, or the plugin would fold it into an
f32 copy (three times the memory). The mapping must outlive the first inference, which packs the weights.
"""

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from openvino.op import Constant

from llmhostd.domain.model import WeightFormat
from llmhostd.loader.safetensors import Checkpoint
from llmhostd_openvino.ops import ints64

_TYPES = {"BF16": ov.Type.bf16, "F16": ov.Type.f16, "F32": ov.Type.f32, "I8": ov.Type.i8, "U8": ov.Type.u8}


class Weights:
    """Makes the nodes of a checkpoint's tensors."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def plain(self, name: str) -> ov.Node:
        """Make the f32-typed node of a tensor stored as float."""
        if self._checkpoint.dtype(name) == "F32":
            return self._constant(name)
        return _compressed(ops.convert(self._constant(name), "f32"))

    def vector(self, name: str) -> ov.Node:
        """Make a small f32 constant (norms, biases): converted now, so that no type is left to chance."""
        values = self._checkpoint.array(name)
        if self._checkpoint.dtype(name) == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return ops.constant(np.array(values, np.float32))

    def linear(self, name: str) -> ov.Node:
        """Make the f32-typed node `[outputs, inputs]` of a linear weight, plain or quantised."""
        if name in self._checkpoint:
            return self.plain(name)
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
        element = element or _TYPES[self._checkpoint.dtype(name)]
        view = ov.Tensor(values.reshape(-1), ov.Shape(shape or list(values.shape)), element)
        return Constant(view, shared_memory=True)


def _compressed(node: ov.Node) -> ov.Node:
    node.get_rt_info()["decompression_0"] = ""
    return node
