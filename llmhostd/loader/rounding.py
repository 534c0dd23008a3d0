"""Which small integers stand for these weights?

Round to nearest. Scales are rounded to f16 first and values are divided by the rounded scale, so that what the engine
multiplies back is as near as the integers allow.
"""

import numpy as np
import numpy.typing as npt

Float32s = npt.NDArray[np.float32]
Float16s = npt.NDArray[np.float16]

_SMALLEST_SCALE = np.float16(6e-8)
"""The smallest f16 above 0: rows of zeros keep a scale that can be divided by."""


def rows_i8(weights: Float32s) -> tuple[npt.NDArray[np.int8], Float16s]:
    """Symmetric int8 per row: `[n, k]` -> values i8 `[n, k]`, scales f16 `[n, 1]`."""
    scale = _half(np.abs(weights).max(axis=1, keepdims=True) / np.float32(127))
    values = np.rint(weights / scale.astype(np.float32))
    return np.clip(values, -127, 127).astype(np.int8), scale


def groups_u4(weights: Float32s, group: int) -> tuple[npt.NDArray[np.uint8], Float16s, npt.NDArray[np.uint8]]:
    """Asymmetric u4 per `group` inputs.

    `[n, k]` -> values u8 `[n, k/2]` (first of a pair in the low half), scales f16 `[n, k/group]`, zero points u8
    `[n * k/group / 2]`, packed alike. Zero is always represented exactly.
    """
    rows, inputs = weights.shape
    grouped = weights.reshape(rows, inputs // group, group)
    low = np.minimum(grouped.min(axis=2, keepdims=True), 0)
    high = np.maximum(grouped.max(axis=2, keepdims=True), 0)
    scale = _half((high - low) / np.float32(15))
    step = scale.astype(np.float32)
    zero = np.clip(np.rint(-low / step), 0, 15)
    values = np.clip(np.rint(grouped / step) + zero, 0, 15).astype(np.uint8)
    return _pack(values.reshape(rows, inputs)), scale[:, :, 0], _pack(zero.astype(np.uint8).reshape(1, -1))[0]


def _half(scale: Float32s) -> Float16s:
    return np.maximum(scale.astype(np.float16), _SMALLEST_SCALE)


def _pack(values: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Two values per byte along the last axis, whose length is even."""
    packed: npt.NDArray[np.uint8] = values[..., 0::2] | (values[..., 1::2] << np.uint8(4))
    return packed
