"""How is a checkpoint made smaller, once, when it is added?

Weight-only round-to-nearest: int8 per output row or int4 in groups of inputs (formats: `checkpoints.quantization`).
Tensors stream through in bounded pieces, so a model needs no more memory than a few of its rows. The embedding is kept
in bf16, a head of its own becomes int8. The result appears under its name only when it is complete and durable.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llmhostd.checkpoints.quantization import GROUPS, Quantization, quantization_config
from llmhostd.checkpoints.tensors import EMBEDDING, expected_tensors, linear_shapes
from llmhostd.domain.errors import CheckpointError, OperatorError
from llmhostd.domain.model import Architecture, WeightFormat
from llmhostd.loader.rounding import groups_u4, rows_i8
from llmhostd.loader.safetensors import CONFIG_FILE, SINGLE_FILE, Checkpoint, open_checkpoint, read_json
from llmhostd.loader.safetensors_writer import PlannedTensor, to_bf16, write_safetensors

Progress = Callable[[int, int], None]
"""Hears (bytes written, bytes in all)."""

_PIECE_ELEMENTS = 4_000_000
_COMPANIONS = (".json", ".jinja", ".txt", ".model")
"""Suffixes of what is copied beside the weights: tokenizer, chat template, generation settings."""

_Array = npt.NDArray[Any]


def quantize(source: Path, destination: Path, kind: WeightFormat, progress: Progress | None = None) -> None:
    """Write a quantised copy of the checkpoint at `source` to the new directory `destination`.

    Raises CheckpointError when the source cannot be quantised, OperatorError when the destination cannot be written.
    """
    checkpoint = open_checkpoint(source)
    quantization = _choose(checkpoint, kind)
    if destination.exists():
        raise OperatorError(f"{destination}: exists already")
    partial = destination.with_name(f".{destination.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        planned = plan(checkpoint, quantization)
        write_safetensors(partial / SINGLE_FILE, planned, written=_counter(planned, progress))
        _write_companions(source, partial, quantization)
        _sync(partial)
        partial.rename(destination)
        _sync(destination.parent)
    except OSError as error:
        raise OperatorError(f"{destination}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def plan(checkpoint: Checkpoint, quantization: Quantization) -> list[PlannedTensor]:
    """List the tensors of the quantised checkpoint, in the order of computation, values made as they are written."""
    planned = []
    parts: dict[str, _Parts] = {}
    for spec in expected_tensors(checkpoint.architecture, quantization):
        base, _, suffix = spec.name.rpartition(".")
        if spec.name in checkpoint:
            dtype = "BF16" if spec.name == EMBEDDING else checkpoint.dtype(spec.name)
            planned.append(PlannedTensor(spec.name, dtype, spec.shape, _Copy(checkpoint, spec.name)))
            continue
        # Quantised parts follow each other, the values first: making them yields the scales on the way.
        if base not in parts:
            parts[base] = _Parts(checkpoint, base, quantization)
        planned.append(PlannedTensor(spec.name, spec.dtypes[0], spec.shape, parts[base].reader(suffix)))
    return planned


def _choose(checkpoint: Checkpoint, kind: WeightFormat) -> Quantization:
    if checkpoint.quantization is not None:
        raise CheckpointError(f"{checkpoint.path}: is quantised already ({checkpoint.weights})")
    if kind is WeightFormat.INT8:
        return Quantization(format=kind)
    if kind is not WeightFormat.INT4:
        raise OperatorError(f"cannot quantise to {kind!s}; known: int8, int4")
    return Quantization(format=kind, group=_group(checkpoint.path, checkpoint.architecture))


def _group(path: Path, architecture: Architecture) -> int:
    """Return the preferred group size that divides the inputs of every linear layer."""
    inputs = sorted({shape[1] for shape in linear_shapes(architecture).values()})
    for group in GROUPS:
        if all(width % group == 0 for width in inputs):
            return group
    raise CheckpointError(f"{path}: int4 needs layer widths that {GROUPS[-1]} divides; they are {inputs}: use int8")


def floats(checkpoint: Checkpoint, name: str, rows: slice) -> npt.NDArray[np.float32]:
    """Return rows of a float tensor as float32."""
    values = checkpoint.array(name)[rows]
    if checkpoint.dtype(name) == "BF16":
        widened: npt.NDArray[np.float32] = (values.astype(np.uint32) << 16).view(np.float32)
        return widened
    return values.astype(np.float32)


def _slices(checkpoint: Checkpoint, name: str) -> Iterator[slice]:
    """Cut a tensor into runs of rows of bounded size, even in number: packed zero points then end on a byte."""
    shape = checkpoint.array(name).shape
    step = max(2, _PIECE_ELEMENTS // shape[1] & ~1) if len(shape) == 2 else shape[0]
    for first in range(0, shape[0], step):
        yield slice(first, min(first + step, shape[0]))


class _Copy:
    """Reads a tensor that stays a float."""

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        self._checkpoint, self._name = checkpoint, name

    def __call__(self) -> Iterator[_Array]:
        narrow = self._name == EMBEDDING and self._checkpoint.dtype(self._name) != "BF16"
        for rows in _slices(self._checkpoint, self._name):
            if narrow:
                yield to_bf16(floats(self._checkpoint, self._name, rows))
            else:
                yield self._checkpoint.array(self._name)[rows]


class _Parts:
    """Quantises one tensor: reading `q` to its end makes the other parts ready."""

    def __init__(self, checkpoint: Checkpoint, name: str, quantization: Quantization) -> None:
        self._checkpoint, self._name = checkpoint, name
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
        for rows in _slices(self._checkpoint, self._name):
            weights = floats(self._checkpoint, self._name, rows)
            if not np.isfinite(weights).all():
                raise CheckpointError(
                    f"{self._checkpoint.path}: tensor `{self._name}` holds values that are not finite"
                )
            if self._group:
                values, scale, zero_point = groups_u4(weights, self._group)
                zero_points.append(zero_point)
            else:
                values, scale = rows_i8(weights)
            scales.append(scale)
            yield values
        self._ready = {"scale": scales, "zp": zero_points}


def _counter(planned: list[PlannedTensor], progress: Progress | None) -> Callable[[int], None] | None:
    if progress is None:
        return None
    total, done = sum(one.stored_bytes for one in planned), 0

    def written(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    return written


def _write_companions(source: Path, partial: Path, quantization: Quantization) -> None:
    config = read_json(source / CONFIG_FILE) | {"quantization_config": quantization_config(quantization)}
    (partial / CONFIG_FILE).write_text(json.dumps(config, indent=2))
    for file in sorted(source.iterdir()):
        wanted = file.suffix in _COMPANIONS and file.name != CONFIG_FILE and not file.name.endswith(".index.json")
        if wanted and file.is_file():
            shutil.copyfile(file, partial / file.name)
    for file in partial.iterdir():
        _sync(file)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
