"""How is a safetensors file written without holding it in memory?

The format is a little-endian u64 header length, a JSON header (name -> dtype, shape, offsets), and the raw tensors.
Every tensor's size is known before its values are, so the header goes out first and the values stream behind it.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from llmhostd.checkpoints.dtypes import stored_bytes

_ALIGNMENT = 64
"""The first tensor starts at a multiple of this, so that a mapping of the file can be used in place."""


class PlannedTensor(NamedTuple):
    """A tensor whose values are made when it is its turn.

    `values` yields C-contiguous pieces that concatenate to the whole, in the stored dtype (bf16 as `uint16`).
    """

    name: str
    dtype: str
    """safetensors' word: one of `checkpoints.dtypes.DTYPE_BYTES`."""
    shape: tuple[int, ...]
    values: Callable[[], Iterator[npt.NDArray[np.generic]]]

    @property
    def stored_bytes(self) -> int:
        """Bytes in the file."""
        return stored_bytes(self.dtype, self.shape)


def to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round finite float32 to bfloat16 bits, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += bits
    rounded += np.uint32(0x7FFF)
    rounded >>= 16
    return rounded.astype(np.uint16)


def stored(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[np.generic]:
    """Float values as they are stored under `dtype` (`F32`, `F16` or `BF16`)."""
    if dtype == "BF16":
        return to_bf16(values)
    return np.ascontiguousarray(values, dtype={"F32": np.float32, "F16": np.float16}[dtype])


def write_safetensors(
    path: Path,
    tensors: Sequence[PlannedTensor],
    *,
    metadata: Mapping[str, str] | None = None,
    written: Callable[[int], None] | None = None,
) -> int:
    """Write `tensors` in their order and make them durable. Returns the file's size in bytes.

    `written` hears the bytes of each piece. Raises ValueError if a tensor's pieces do not add up to its shape.
    """
    header = _header(tensors, metadata or {})
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for tensor in tensors:
            _write_tensor(file, tensor, written)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def _header(tensors: Sequence[PlannedTensor], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.stored_bytes
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    return header + b" " * (-(8 + len(header)) % _ALIGNMENT)


def _write_tensor(file: BinaryIO, tensor: PlannedTensor, written: Callable[[int], None] | None) -> None:
    total = 0
    for piece in tensor.values():
        file.write(np.ascontiguousarray(piece).data)
        total += piece.nbytes
        if written is not None:
            written(piece.nbytes)
    if total != tensor.stored_bytes:
        raise ValueError(f"{tensor.name}: {total} bytes were made, its shape takes {tensor.stored_bytes}")
