"""What low-rank adapter lies in this directory, and where are its factors?

Adapters are read as `peft` writes them. The file is mapped and its factors are views of the page cache. It is read once
from end to end, for its identity, and held against its base before anything is computed with it.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from llmhostd.checkpoints.adapter import AdaptedLinear, Adapter, check_tensors, parse_adapter
from llmhostd.domain.errors import CheckpointError
from llmhostd.domain.model import Architecture
from llmhostd.loader.checksum import checksum
from llmhostd.loader.header import StoredTensor, read_header
from llmhostd.loader.lease import map_leased
from llmhostd.loader.plain_file import FileState, state_of
from llmhostd.loader.safetensors import read_json

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_PICKLE_FILE = "adapter_model.bin"

_NUMPY: dict[str, npt.DTypeLike] = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}
_BF16_EXPONENT = np.uint16(0x7F80)
"""All its bits are set in an infinity and in what is no number, and in nothing else."""

Factor = npt.NDArray[Any]
"""Values as stored; BF16 comes as uint16 (numpy has no bfloat16)."""


class Factors(NamedTuple):
    """The update of one linear layer, as stored: A `[rank, inputs]`, B `[outputs, rank]`. Views of the file."""

    linear: AdaptedLinear
    a: Factor
    a_dtype: str
    b: Factor
    b_dtype: str


class AdapterWeights:
    """A mapped adapter. Its factors are read-only views; whoever uses them keeps this object alive."""

    def __init__(self, path: Path, adapter: Adapter, tensors: dict[str, StoredTensor]) -> None:
        """Map and check the factors. Raises CheckpointError."""
        self._file = path / WEIGHTS_FILE
        self._state = self._state_now()
        self.path = path
        self.adapter = adapter
        self._tensors = tensors
        self._map, _ = map_leased(self._file)
        if len(self._map) < max((one.end for one in tensors.values()), default=0):
            raise CheckpointError(f"{self._file}: was cut short while it was opened")
        self.identity = _identity(adapter, self._map)
        """Equal for adapters that compute the same, whatever they are called."""
        self.factors = tuple(self._factors(one) for one in adapter.linears)

    @property
    def unchanged(self) -> bool:
        """Whether its file is the one that was read, as it was then: nobody wrote to what the factors are views of."""
        return self._state == self._state_now()

    @property
    def weight_bytes(self) -> int:
        """Bytes of the factors, as stored."""
        return sum(one.end - one.begin for one in self._tensors.values())

    def _state_now(self) -> FileState | None:
        try:
            return state_of(self._file.stat())
        except OSError:
            return None

    def _factors(self, linear: AdaptedLinear) -> Factors:
        (a, _), (b, _) = linear.tensors
        return Factors(linear, self._array(a), self._tensors[a].dtype, self._array(b), self._tensors[b].dtype)

    def _array(self, name: str) -> Factor:
        """Return a view. Raises CheckpointError unless all values are finite: 0 times what is not is no zero."""
        place = self._tensors[name]
        element = np.dtype(_NUMPY[place.dtype])
        count = (place.end - place.begin) // element.itemsize
        values: Factor = np.frombuffer(self._map, element, count, place.begin).reshape(place.shape)
        if not _is_finite(values, place.dtype):
            raise CheckpointError(f"{place.file}: tensor `{name}` holds values that are not finite")
        return values


def is_adapter(path: Path) -> bool:
    """Whether a directory holds an adapter, and no model of its own."""
    return (path / CONFIG_FILE).is_file() and not (path / "config.json").is_file()


def open_adapter(path: Path, base: Architecture) -> AdapterWeights:
    """Read, map and check an adapter's directory. Raises CheckpointError naming the file and the field or tensor."""
    if not path.is_dir():
        raise CheckpointError(f"{path}: is not a directory with an adapter")
    adapter = parse_adapter(read_json(path / CONFIG_FILE), base, str(path / CONFIG_FILE))
    file = path / WEIGHTS_FILE
    if not file.exists():
        pickled = f"; {_PICKLE_FILE} is a pickle, which is not read" if (path / _PICKLE_FILE).exists() else ""
        raise CheckpointError(f"{path}: holds no {WEIGHTS_FILE}{pickled}")
    tensors = read_header(file)
    for name, one in tensors.items():
        if one.dtype not in _NUMPY:
            raise CheckpointError(f"{file}: tensor `{name}` is stored as {one.dtype}; known here: {', '.join(_NUMPY)}")
    check_tensors(adapter, {name: one.shape for name, one in tensors.items()}, str(file))
    return AdapterWeights(path, adapter, tensors)


def verify_adapter(path: Path, base: Architecture, identity: str) -> AdapterWeights:
    """Open an adapter that must be the one that was added. Raises CheckpointError for another in its place, too."""
    weights = open_adapter(path, base)
    if weights.identity != identity:
        raise CheckpointError(f"{path}: its files changed since it was added; add it again")
    return weights


def _is_finite(values: Factor, dtype: str) -> bool:
    if dtype == "BF16":
        return bool(((values & _BF16_EXPONENT) != _BF16_EXPONENT).all())
    return bool(np.isfinite(values).all())


def _identity(adapter: Adapter, view: memoryview) -> str:
    scales = ",".join(f"{one.layer}.{one.name}:{one.scale!r}" for one in adapter.linears)
    return f"{checksum(view)}{checksum(scales.encode())}"
