"""What are the values of a smaller checkpoint, made once, when it is converted?

Weight-only round-to-nearest: int8 per output row or int4 in groups of inputs (formats: `checkpoints.quantization`).
Tensors stream through in bounded pieces, so a model needs no more memory than a few of its rows. The embedding is kept
in bf16, a head of its own becomes int8.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llmhostd.checkpoints.layout import WantedTensor
from llmhostd.checkpoints.quantization import GROUPS, Quantization
from llmhostd.checkpoints.tensors import EMBEDDING, expected_tensors, linear_shapes
from llmhostd.domain.errors import CheckpointError, OperatorError
from llmhostd.domain.model import Architecture, WeightFormat
from llmhostd.loader.rounding import groups_u4, rows_i8
from llmhostd.loader.safetensors_writer import to_bf16
from llmhostd.loader.source import Source

_PIECE_ELEMENTS = 4_000_000

_Array = npt.NDArray[Any]
Values = Callable[[], Iterator[_Array]]


def quantized(source: Source, quantization: Quantization) -> list[tuple[WantedTensor, Values]]:
    """List the tensors of the quantised checkpoint in the order of computation, with what makes their values."""
    planned: list[tuple[WantedTensor, Values]] = []
    parts: dict[str, _Parts] = {}
    for spec in expected_tensors(source.description.architecture, quantization):
        base, _, suffix = spec.name.rpartition(".")
        values: Values
        if spec.name in source:
            dtype = "BF16" if spec.name == EMBEDDING else source.dtype(spec.name)
            values = _Copy(source, spec.name, dtype)
        else:
            # Quantised parts follow each other, the values first: making them yields the scales on the way.
            if base not in parts:
                parts[base] = _Parts(source, base, quantization)
            dtype, values = spec.dtypes[0], parts[base].reader(suffix)
        wanted = WantedTensor(name=spec.name, dtype=dtype, shape=spec.shape, module=spec.module, layer=spec.layer)
        planned.append((wanted, values))
    return planned


def copied(source: Source) -> list[tuple[WantedTensor, Values]]:
    """List the tensors of a checkpoint as they are, in the order of computation."""
    planned: list[tuple[WantedTensor, Values]] = []
    for spec in expected_tensors(source.description.architecture, source.description.quantization):
        dtype = source.dtype(spec.name)
        wanted = WantedTensor(name=spec.name, dtype=dtype, shape=spec.shape, module=spec.module, layer=spec.layer)
        planned.append((wanted, _Copy(source, spec.name, dtype)))
    return planned


def choose(source: Source, kind: WeightFormat) -> Quantization:
    """Decide how to quantise a checkpoint. Raises CheckpointError if it cannot be, OperatorError for another kind."""
    if source.description.quantization is not None:
        raise CheckpointError(f"{source.path}: is quantised already ({source.description.weights})")
    if kind is WeightFormat.INT8:
        return Quantization(format=kind)
    if kind is not WeightFormat.INT4:
        raise OperatorError(f"cannot quantise to {kind!s}; known: int8, int4")
    return Quantization(format=kind, group=_group(source.path, source.description.architecture))


def _group(path: Path, architecture: Architecture) -> int:
    """Return the preferred group size that divides the inputs of every linear layer."""
    inputs = sorted({shape[1] for shape in linear_shapes(architecture).values()})
    for group in GROUPS:
        if all(width % group == 0 for width in inputs):
            return group
    raise CheckpointError(f"{path}: int4 needs layer widths that {GROUPS[-1]} divides; they are {inputs}: use int8")


def floats(source: Source, name: str, rows: slice) -> npt.NDArray[np.float32]:
    """Return rows of a float tensor as float32."""
    values = source.rows(name, rows)
    if source.dtype(name) == "BF16":
        widened: npt.NDArray[np.float32] = (values.astype(np.uint32) << 16).view(np.float32)
        return widened
    return values.astype(np.float32)


def _slices(source: Source, name: str) -> Iterator[slice]:
    """Cut a tensor into runs of rows of bounded size, even in number: packed zero points then end on a byte."""
    shape = source.shape(name)
    step = max(2, _PIECE_ELEMENTS // shape[1] & ~1) if len(shape) == 2 else shape[0]
    for first in range(0, shape[0], step):
        yield slice(first, min(first + step, shape[0]))


class _Copy:
    """Reads a tensor that stays a float, or is only narrowed to bf16."""

    def __init__(self, source: Source, name: str, dtype: str) -> None:
        self._source, self._name = source, name
        self._narrow = dtype != source.dtype(name)

    def __call__(self) -> Iterator[_Array]:
        for rows in _slices(self._source, self._name):
            if self._narrow:
                yield to_bf16(floats(self._source, self._name, rows))
            else:
                yield self._source.rows(self._name, rows)


class _Parts:
    """Quantises one tensor: reading `q` to its end makes the other parts ready."""

    def __init__(self, source: Source, name: str, quantization: Quantization) -> None:
        self._source, self._name = source, name
        is_layer = name.startswith("model.layers.")
        self._group = quantization.group if is_layer else 0
        self._ready: dict[str, list[_Array]] = {}

    def reader(self, suffix: str) -> Callable[[], Iterator[_Array]]:
        """Return what reads the part of this suffix: `q`, `scale` or `zp`."""
        return self._values if suffix == "q" else lambda: iter(self._ready.pop(suffix))

    def _values(self) -> Iterator[_Array]:
        scales: list[_Array] = []
        zero_points: list[_Array] = []
        values: _Array
        for rows in _slices(self._source, self._name):
            weights = floats(self._source, self._name, rows)
            if not np.isfinite(weights).all():
                raise CheckpointError(f"{self._source.path}: tensor `{self._name}` holds values that are not finite")
            if self._group:
                values, scale, zero_point = groups_u4(weights, self._group)
                zero_points.append(zero_point)
            else:
                values, scale = rows_i8(weights)
            scales.append(scale)
            yield values
        self._ready = {"scale": scales, "zp": zero_points}
