"""Which models may callers ask for?"""

import msgspec
from sqlite_utils import Database

from llmhostd.checkpoints.kv_size import kv_bytes_per_token
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.ids import ModelName
from llmhostd.domain.model import (
    ComputePrecision,
    KvPrecision,
    LowRankAdapter,
    ModelShape,
    ModelSpec,
    Slo,
    WeightFormat,
)
from llmhostd.domain.words import Word
from llmhostd.state.database import durable
from llmhostd.state.policy import PrecisionPolicy, SloPolicy

AUTO = "auto"
DEFAULT = ""
"""A registered model's `compute` or `kv` when the configuration decides."""


class RegisteredModel(Word):
    """One row of the table: what an operator registered, with what was read from its checkpoint."""

    name: ModelName
    path: str
    """Directory of the checkpoint, absolute."""
    shape: ModelShape
    """As described when it was added; `spec_of` puts in the precisions in force."""
    parameters: int
    compute: str = DEFAULT
    kv: str = DEFAULT
    ttft_s: float | None = None
    """None: the configuration's promise."""
    tpot_s: float | None = None
    source: str = "local"
    """Where it came from: `local`, `demo`, or the hub's name."""
    added_at: float = 0.0
    """Unix seconds."""
    adapter: LowRankAdapter | None = None
    """Of an adapter; its `shape` is its base's then."""


class ModelTable:
    """The table `models`."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._table = db["models"]

    def all(self) -> list[RegisteredModel]:
        """Return every model, by name."""
        return [_from_row(row) for row in self._table.rows_where(order_by="name")]

    def put(self, model: RegisteredModel) -> None:
        """Add a model, or replace the one of that name; on the disk when this returns."""
        row = {name: getattr(model, name) for name in model.__struct_fields__}
        with durable(self._db):
            self._table.insert(row | {"shape": _json(model.shape), "adapter": _json(model.adapter)}, replace=True)

    def remove(self, name: ModelName) -> bool:
        """Forget a model, for good when this returns; its files stay. False if there was none."""
        known = bool(self._table.count_where("name = ?", [name]))
        with durable(self._db):
            self._table.delete_where("name = ?", [name])
        return known


def spec_of(model: RegisteredModel, slo: SloPolicy, precision: PrecisionPolicy, *, bf16_hardware: bool) -> ModelSpec:
    """Return what the minds know of a checkpoint under this configuration, on this CPU; its adapters left out."""
    compute = compute_precision(model.compute or precision.compute, model.shape.weights, bf16_hardware=bf16_hardware)
    kv = kv_precision(model.kv or precision.kv)
    shape = msgspec.structs.replace(
        model.shape, compute=compute, kv=kv, kv_bytes_per_token=kv_bytes_per_token(model.shape.architecture, kv)
    )
    promise = Slo(
        ttft_s=slo.ttft_s if model.ttft_s is None else model.ttft_s,
        tpot_s=slo.tpot_s if model.tpot_s is None else model.tpot_s,
    )
    return ModelSpec(name=model.name, shape=shape, slo=promise)


def compute_precision(wanted: str, weights: WeightFormat, *, bf16_hardware: bool) -> ComputePrecision:
    """Resolve `auto`. Raises OperatorError for an unknown word.

    Quantized weights are computed in f32: their dynamic quantization of activations does nothing under bf16.
    """
    if wanted != AUTO:
        _check("compute", wanted, [AUTO, *(one.value for one in ComputePrecision)])
        return ComputePrecision(wanted)
    quantized = weights in (WeightFormat.INT8, WeightFormat.INT4)
    return ComputePrecision.BF16 if bf16_hardware and not quantized else ComputePrecision.F32


def kv_precision(wanted: str) -> KvPrecision:
    """Check the word. Raises OperatorError for an unknown one."""
    _check("kv", wanted, [one.value for one in KvPrecision])
    return KvPrecision(wanted)


def _check(field: str, wanted: str, known: list[str]) -> None:
    if wanted not in known:
        raise OperatorError(f"{field}: is {wanted!r}; expected one of {', '.join(known)}")


def _from_row(row: dict[str, object]) -> RegisteredModel:
    shape = msgspec.json.decode(str(row["shape"]), type=ModelShape)
    adapter = msgspec.json.decode(str(row["adapter"]), type=LowRankAdapter | None) if row["adapter"] else None
    return msgspec.convert(row | {"shape": shape, "adapter": adapter}, RegisteredModel)


def _json(value: Word | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
