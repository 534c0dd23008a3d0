"""What are the small pieces of a decoder graph, in the forms that the CPU plugin fuses?

All hidden states are `[T, width]` float32 nodes (T tokens of all requests, one after another); the plugin computes
them in the precision it was asked for.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import openvino as ov
import openvino.opset13 as ops
from openvino.op import Parameter

from llmhostd.domain.model import Architecture, RopeScaling

_TO_THE_END = 2**63 - 1


def ints64(values: Sequence[int]) -> ov.Node:
    """Make an i64 vector constant."""
    return ops.constant(np.array(values, np.int64))


def int32(value: int) -> ov.Node:
    """Make an i32 scalar constant."""
    return ops.constant(np.array(value, np.int32))


def floats(values: object) -> ov.Node:
    """Make an f32 constant."""
    return ops.constant(np.array(values, np.float32))


def parameter(element: ov.Type, shape: Sequence[int], name: str) -> Parameter:
    """Make a graph input; -1 is a dynamic extent."""
    made = Parameter(element, ov.PartialShape(list(shape)))
    made.set_friendly_name(name)
    made.output(0).get_tensor().set_names({name})
    return made


def rms_norm(x: ov.Node, weight: ov.Node, eps: float) -> ov.Node:
    """Scale the last axis by its root mean square."""
    mean_square = ops.reduce_mean(ops.power(x, floats([[2.0]])), ints64([-1]), True)
    inverse = ops.divide(floats([[1.0]]), ops.sqrt(ops.add(mean_square, floats([[eps]]))))
    return ops.multiply(weight, ops.multiply(x, inverse))


def swish(x: ov.Node) -> ov.Node:
    """Multiply by the sigmoid. The explicit beta keeps the plugin from fusing the MLP, which is slower to load."""
    return ops.swish(x, floats(1.0))


def split_heads(x: ov.Node, heads: int, head_dim: int) -> ov.Node:
    """`[T, heads * head_dim]`, or with more axes before -> `[T, 1, heads, head_dim]`."""
    return ops.reshape(x, ints64([-1, 1, heads, head_dim]), False)


def heads_first(x: ov.Node) -> ov.Node:
    """`[T, 1, heads, head_dim]` -> `[T, heads, 1, head_dim]`."""
    return ops.transpose(x, ints64([0, 2, 1, 3]))


def join_heads(x: ov.Node) -> ov.Node:
    """`[T, heads, 1, head_dim]` -> `[T, heads * head_dim]`."""
    return ops.reshape(ops.transpose(x, ints64([0, 2, 1, 3])), ints64([0, -1]), True)


class Rope:
    """Rotary embedding; cosines and sines are computed once per iteration and shared by all layers."""

    def __init__(self, architecture: Architecture, positions: ov.Node) -> None:
        """Take `positions [T]` i64."""
        self._half = architecture.head_dim // 2
        inverse = inverse_frequencies(architecture).reshape(1, self._half, 1)
        at = ops.convert(ops.unsqueeze(ops.unsqueeze(positions, int32(-1)), ints64([1])), "f32")
        angles = ops.transpose(ops.matmul(floats(inverse), at, False, False), ints64([0, 2, 1]))
        both = ops.concat([angles, angles], -1)
        self._cos = ops.unsqueeze(ops.cos(both), ints64([1]))
        self._sin = ops.unsqueeze(ops.sin(both), ints64([1]))

    def __call__(self, x: ov.Node) -> ov.Node:
        """Rotate `[T, heads, 1, head_dim]`."""
        last, one = ints64([3]), ints64([1])
        high = ops.slice(x, ints64([self._half]), ints64([_TO_THE_END]), one, last)
        low = ops.slice(x, ints64([0]), ints64([self._half]), one, last)
        rotated = ops.concat([ops.multiply(high, floats(-1.0)), low], -1)
        return ops.add(ops.multiply(x, self._cos), ops.multiply(rotated, self._sin))


def inverse_frequencies(architecture: Architecture) -> npt.NDArray[np.float32]:
    """Angles per position, `[head_dim / 2]`, scaled as Llama 3.x does when the architecture asks for it."""
    exponents = np.arange(0, architecture.head_dim, 2, dtype=np.float32) / np.float32(architecture.head_dim)
    plain = (1.0 / np.float32(architecture.rope_theta) ** exponents).astype(np.float32)
    return plain if architecture.rope_scaling is None else _llama3(plain, architecture.rope_scaling)


def _llama3(plain: npt.NDArray[np.float32], scaling: RopeScaling) -> npt.NDArray[np.float32]:
    """Divide long wavelengths by `factor`, keep short ones, and blend between."""
    wavelength = 2 * math.pi / plain
    turns = scaling.original_max_position_tokens / wavelength
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = np.clip(keep, 0.0, 1.0)
    return ((1 - blend) * plain / scaling.factor + blend * plain).astype(np.float32)
