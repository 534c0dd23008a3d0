"""What do quantised weights stand for? Written from the format's description, not from the code that writes it."""

import numpy as np

from llmhostd.loader.safetensors import Checkpoint


def dequantized(checkpoint: Checkpoint, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a weight as float32 and the largest error that rounding may have made, element by element."""
    if name in checkpoint:
        bits = checkpoint.array(name)
        values = (
            (bits.astype(np.uint32) << 16).view(np.float32)
            if checkpoint.dtype(name) == "BF16"
            else bits.astype(np.float32)
        )
        return values, np.abs(values) * 2.0**-8 + 1e-30
    values, scale = checkpoint.array(name + ".q"), checkpoint.array(name + ".scale").astype(np.float32)
    if name + ".zp" not in checkpoint:
        return values.astype(np.float32) * scale, np.broadcast_to(scale * (0.5 + 127 * 2.0**-11), values.shape)
    rows, groups = scale.shape
    weights = _nibbles(values).reshape(rows, groups, -1).astype(np.float32)
    zero_points = _nibbles(checkpoint.array(name + ".zp")).reshape(rows, groups, 1).astype(np.float32)
    near = (weights - zero_points) * scale[:, :, None]
    step = np.broadcast_to(scale[:, :, None] * (1.0 + 15 * 2.0**-11), near.shape)
    return near.reshape(rows, -1), step.reshape(rows, -1)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)
