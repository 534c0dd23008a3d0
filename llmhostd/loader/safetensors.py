"""What model lies in this directory, and where are its tensors?

`describe` reads and checks config.json and the safetensors headers and touches no weight; `open_checkpoint` also maps
the files, so that tensors are views of the page cache (zero copy).
"""

import contextlib
import json
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from llmhostd.checkpoints.architecture import parse_architecture
from llmhostd.checkpoints.fields import ConfigFields
from llmhostd.checkpoints.kv_size import kv_bytes_per_token
from llmhostd.checkpoints.quantization import Quantization, parse_quantization
from llmhostd.checkpoints.tensors import TensorSpec, expected_tensors, layer_tensors, parameter_count
from llmhostd.domain.errors import CheckpointError
from llmhostd.domain.model import Architecture, ComputePrecision, KvPrecision, ModelShape, WeightFormat
from llmhostd.loader.header import StoredTensor, read_header
from llmhostd.loader.lease import LeasedFile, map_leased
from llmhostd.loader.mapped_reader import Arriving, MappedReader
from llmhostd.loader.plain_file import content, opened, readable
from llmhostd.loader.store_index import ARRIVING_FILE, is_store, read_index, stored_tensors

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
CONFIG_FILE = "config.json"
GENERATION_CONFIG_FILE = "generation_config.json"

_NOT_READ = (".bin", ".gguf", ".pt", ".pth")
_MAX_JSON_BYTES = 64_000_000
NUMPY_TYPES = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32, "I8": np.int8, "U8": np.uint8}
"""How tensors are read by safetensors' word for their type; numpy has no bfloat16."""
_FLOAT_FORMATS = {"BF16": WeightFormat.BF16, "F16": WeightFormat.F16, "F32": WeightFormat.F32}


@dataclass(frozen=True)
class Description:
    """All that is known of a checkpoint without its weights. `tensors` holds exactly what the architecture demands."""

    path: Path
    architecture: Architecture
    quantization: Quantization | None
    weights: WeightFormat
    tensors: dict[str, StoredTensor]

    @property
    def weight_bytes(self) -> int:
        """Bytes of the tensors that are used, as stored."""
        return sum(one.end - one.begin for one in self.tensors.values())

    @property
    def parameters(self) -> int:
        """Parameters of the unquantised model."""
        return parameter_count(self.architecture)

    def shape(self, compute: ComputePrecision, kv: KvPrecision) -> ModelShape:
        """Return what decides the cost of this model when it is computed in these precisions."""
        return ModelShape(
            architecture=self.architecture,
            weights=self.weights,
            compute=compute,
            kv=kv,
            weight_bytes=self.weight_bytes,
            kv_bytes_per_token=kv_bytes_per_token(self.architecture, kv),
        )


class Checkpoint:
    """A mapped checkpoint. Arrays are read-only views; whoever uses them keeps this object alive.

    They stay what they are whatever becomes of the files (`loader.lease`), where the log says nothing else.
    """

    def __init__(self, description: Description, arriving: Arriving | None = None) -> None:
        """`arriving`: a store's weights are still coming into its file."""
        self._arriving = arriving
        self.description = description
        self.path = description.path
        self.architecture = description.architecture
        self.quantization = description.quantization
        self.weights = description.weights
        self._leased: list[LeasedFile] = []
        files = sorted({one.file for one in description.tensors.values()})
        self._maps = {file: self._mapped(file) for file in files}
        self.reader = self._checked_reader()
        """Reads a store in order, and counts; None: plain files, read when they are touched."""

    def shape(self, compute: ComputePrecision, kv: KvPrecision) -> ModelShape:
        """See `Description.shape`."""
        return self.description.shape(compute, kv)

    def __contains__(self, name: str) -> bool:
        return name in self.description.tensors

    def dtype(self, name: str) -> str:
        """Return the stored type in safetensors' words: BF16, F16, F32, I8 or U8."""
        return self._place(name).dtype

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return a tensor as a view of the file. BF16 comes as uint16 (numpy has no bfloat16).

        A store's tensor is waited for until it is in memory and checked: raises CheckpointError when it is damaged.
        """
        return self._view(self._place(name))

    def rows(self, names: Sequence[str]) -> npt.NDArray[Any] | None:
        """Return matrices that lie one behind another as one, waited for as `array` does; None: they do not."""
        joint = _joint([self.description.tensors.get(name) for name in names])
        return None if joint is None else self._view(joint)

    def prefetch(self, crowded: Callable[[], bool] | None = None) -> None:
        """Begin to read the files ahead; returns at once. `crowded`: whether others compute on these cores now."""
        if self.reader:
            self.reader.start(crowded)
            return
        for file in self._leased:
            file.memory.read_ahead()

    @property
    def copied_bytes(self) -> int:
        """Memory of this process that took the place of files which somebody wrote to."""
        return sum(file.memory.copied_bytes for file in self._leased)

    def drop_pages(self) -> None:
        """Unmap the pages from this process; they stay in the page cache, and views stay valid."""
        for file in self._leased:
            file.memory.drop_pages()

    def _mapped(self, file: Path) -> memoryview:
        view, leased = map_leased(file) if self._arriving is None else _map_arriving(file)
        if len(view) < max(one.end for one in self.description.tensors.values() if one.file == file):
            raise CheckpointError(f"{file}: was cut short while it was opened")
        self._leased.append(leased)
        return view

    def _checked_reader(self) -> MappedReader | None:
        if not is_store(self.path) or not self._maps:
            return None
        ((file, view),) = self._maps.items()
        return MappedReader(file, view, read_index(self.path), self._arriving)

    def _view(self, place: StoredTensor) -> npt.NDArray[Any]:
        if self.reader:
            self.reader.wait(place.end)
        element = np.dtype(NUMPY_TYPES[place.dtype])
        count = (place.end - place.begin) // element.itemsize
        return np.frombuffer(self._maps[place.file], element, count, place.begin).reshape(place.shape)

    def _place(self, name: str) -> StoredTensor:
        place = self.description.tensors.get(name)
        if place is None:
            raise CheckpointError(f"{self.path}: tensor `{name}` is missing")
        return place


def describe(path: Path) -> Description:
    """Read a checkpoint directory without mapping weights. Raises CheckpointError naming file and field or tensor."""
    with readable(path):
        return _described(path)


def _described(path: Path) -> Description:
    if not path.is_dir():
        raise CheckpointError(
            f"{path}: is not a directory with a checkpoint (config.json, tokenizer.json, safetensors)"
        )
    where = str(path / CONFIG_FILE)
    config = read_json(path / CONFIG_FILE)
    architecture = _with_generation_config(parse_architecture(config, where), path)
    quantization = parse_quantization(config, where)
    stored = _stored_tensors(path)
    specs = expected_tensors(architecture, quantization)
    tensors = {spec.name: _checked(path, spec, stored) for spec in specs}
    return Description(path, architecture, quantization, _weight_format(architecture, quantization, tensors), tensors)


def open_checkpoint(path: Path, arriving: Arriving | None = None) -> Checkpoint:
    """Describe and map a checkpoint. Raises CheckpointError naming file and field or tensor.

    `arriving`: its weights are still coming, and are waited for tensor by tensor.
    """
    return Checkpoint(describe(path), arriving)


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object of bounded size. Raises CheckpointError naming the file."""
    try:
        value = json.loads(content(file, _MAX_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: is not a JSON object")
    return value


def _with_generation_config(architecture: Architecture, path: Path) -> Architecture:
    """Add the end-of-sequence ids of generation_config.json: instruct models often name their turn's end only there."""
    file = path / GENERATION_CONFIG_FILE
    if not file.exists():
        return architecture
    more = ConfigFields(read_json(file), str(file)).token_ids("eos_token_id", architecture.vocab)
    ids = tuple(dict.fromkeys((*architecture.eos_token_ids, *more)))
    return msgspec.structs.replace(architecture, eos_token_ids=ids)


def _stored_tensors(path: Path) -> dict[str, StoredTensor]:
    if is_store(path):
        return stored_tensors(path, read_index(path))
    if os.path.lexists(path / SINGLE_FILE):
        return read_header(path / SINGLE_FILE)
    index = path / INDEX_FILE
    if not index.exists():
        others = sorted(one.name for one in path.iterdir() if one.suffix in _NOT_READ)
        unread = f"; {others[0]} is of a format that is not read" if others else ""
        raise CheckpointError(f"{path}: holds neither {SINGLE_FILE} nor {INDEX_FILE}{unread}")
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{index}: `weight_map` is missing or not an object")
    shards = {tensor: _shard(index, name) for tensor, name in weight_map.items()}
    for file in dict.fromkeys(shards.values()):
        if not os.path.lexists(file):
            raise CheckpointError(f"{file}: is missing, but {INDEX_FILE} names it: not all of the checkpoint is here")
    headers = {file: read_header(file) for file in dict.fromkeys(shards.values())}
    for tensor, file in shards.items():
        if tensor not in headers[file]:
            raise CheckpointError(f"{file}: tensor `{tensor}` is missing, but {INDEX_FILE} says it is there")
    return {tensor: headers[file][tensor] for tensor, file in shards.items()}


def _shard(index: Path, name: object) -> Path:
    """Accept plain file names only: an index must not lead out of its directory."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise CheckpointError(f"{index}: `weight_map` names {name!r}, which is not a file name in this directory")
    return index.parent / name


def _checked(path: Path, spec: TensorSpec, stored: dict[str, StoredTensor]) -> StoredTensor:
    place = stored.get(spec.name)
    if place is None:
        raise CheckpointError(f"{path}: tensor `{spec.name}` is missing; {CONFIG_FILE} asks for {list(spec.shape)}")
    if place.shape != spec.shape:
        raise CheckpointError(
            f"{place.file}: tensor `{spec.name}` has shape {list(place.shape)}; "
            f"{CONFIG_FILE} asks for {list(spec.shape)}"
        )
    if place.dtype not in spec.dtypes:
        raise CheckpointError(
            f"{place.file}: tensor `{spec.name}` is stored as {place.dtype}; known here: {', '.join(spec.dtypes)}"
        )
    return place


def _weight_format(
    architecture: Architecture, quantization: Quantization | None, tensors: dict[str, StoredTensor]
) -> WeightFormat:
    """Name the format by the first layer's linear weights."""
    if quantization is not None:
        return quantization.format
    linear = next(spec.name for spec in layer_tensors(architecture, 0) if spec.name.endswith("_proj.weight"))
    return _FLOAT_FORMATS[tensors[linear].dtype]


def _joint(places: Sequence[StoredTensor | None]) -> StoredTensor | None:
    joint = places[0]
    for one in places[1:]:
        if joint is None or one is None or (joint.file, joint.end) != (one.file, one.begin):
            return None
        if (joint.dtype, joint.shape[1:]) != (one.dtype, one.shape[1:]):
            return None
        joint = joint._replace(end=one.end, shape=(joint.shape[0] + one.shape[0], *one.shape[1:]))
    return joint


def map_file(file: Path) -> mmap.mmap:
    """Map a file read-only. Raises CheckpointError naming it."""
    with opened(file) as stream:
        return mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)


def _map_arriving(file: Path) -> tuple[memoryview, LeasedFile]:
    """Map a data file under the name that it has now: it gets its own while we look, at the latest."""
    for name in (file, file.with_name(ARRIVING_FILE)):
        if name.exists():
            with contextlib.suppress(CheckpointError):
                return map_leased(name, ours=True)
    return map_leased(file, ours=True)
