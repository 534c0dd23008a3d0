"""Adapters in the state: kept, migrated to, and what they make of their base."""

import sqlite3
from pathlib import Path

import msgspec
import pytest
from sqlite_utils import Database

from llmhostd.checkpoints.adapter import linear_names
from llmhostd.domain.ids import ModelName
from llmhostd.domain.model import Architecture, ComputePrecision, KvPrecision, LowRankAdapter, ModelShape, WeightFormat
from llmhostd.state.database import open_database
from llmhostd.state.families import specs_of
from llmhostd.state.migrations import MIGRATIONS, migrate
from llmhostd.state.models import ModelTable, RegisteredModel
from llmhostd.state.policy import AdapterPolicy, PrecisionPolicy, SloPolicy

SHAPE = ModelShape(
    architecture=Architecture(
        family="llama", layers=3, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=128, vocab=256,
        max_context_tokens=512, norm_eps=1e-5, rope_theta=1e4,
    ),
    weights=WeightFormat.BF16, compute=ComputePrecision.F32, kv=KvPrecision.U8, weight_bytes=1000,
    kv_bytes_per_token=96,
)  # fmt: skip
Q, UP = "self_attn.q_proj", "mlp.up_proj"


def model(name: str, **more: object) -> RegisteredModel:
    return RegisteredModel(name=ModelName(name), path=f"/m/{name}", shape=SHAPE, parameters=7, **more)  # type: ignore[arg-type]


def adapter(name: str, base: str, rank: int = 8, modules: tuple[str, ...] = (Q,), **more: object) -> RegisteredModel:
    what = LowRankAdapter(
        base=ModelName(base), identity=f"id-{name}", rank=rank, modules=modules, parameters=5, bytes=10
    )
    return model(name, adapter=what, **more)


def specs(*models: RegisteredModel, compute: str = "f32", slots: int = 4):
    policy = AdapterPolicy(slots=slots)
    return specs_of(models, SloPolicy(), PrecisionPolicy(compute=compute), policy, bf16_hardware=True)


def test_a_database_of_before_keeps_its_models_and_takes_adapters(tmp_path: Path) -> None:
    before = {name: step for name, step in MIGRATIONS.items() if name < "0007"}
    connection = sqlite3.connect(tmp_path / "state.db")
    old = Database(connection)
    migrate(old, before)
    row = {
        "name": "ant", "path": "/m/ant", "shape": msgspec.json.encode(SHAPE).decode(), "compute": "", "kv": "",
        "parameters": 7, "ttft_s": None, "tpot_s": None, "source": "local", "added_at": 0.0,
    }  # fmt: skip
    old["models"].insert(row)
    old.close()
    with open_database(tmp_path) as db:
        assert ModelTable(db).all() == [model("ant")]
        ModelTable(db).put(adapter("zoe", "ant"))
    with open_database(tmp_path) as db:
        assert ModelTable(db).all() == [model("ant"), adapter("zoe", "ant")]


def test_a_base_has_room_for_the_largest_of_its_adapters_and_all_that_they_update() -> None:
    alone = specs(model("ant"))["ant"]
    assert alone.shape.adapters is None
    made = specs(adapter("a", "ant", rank=9), model("ant"), adapter("b", "ant", modules=(UP,)), model("bee"))
    room = made["ant"].shape.adapters
    assert room is not None
    assert (room.slots, room.rank, room.modules) == (2, 16, tuple(one for one in linear_names() if one in (Q, UP)))
    # A and B of both linear layers in three layers, in f32.
    assert room.slot_bytes == 3 * 16 * ((64 + 64) + (64 + 128)) * 4
    assert made["a"].shape == made["b"].shape == made["ant"].shape
    assert made["bee"] == specs(model("bee"))["bee"]
    assert list(made) == ["ant", "bee", "a", "b"]
    assert made["ant"].shape.key != alone.shape.key
    assert made["ant"].shape.without_room() == alone.shape
    many = [adapter(f"a{number}", "ant") for number in range(9)]
    slots = [specs(model("ant"), *many[:count], slots=6)["ant"].shape.adapters.slots for count in range(1, 10)]
    assert slots == [1, 2, 4, 4, 6, 6, 6, 6, 6]
    other = specs(model("ant"), adapter("b", "ant", modules=(UP,)))["ant"]
    assert other.shape.key != made["ant"].shape.key
    half = specs(model("ant"), adapter("a", "ant"), compute="bf16")["ant"].shape.adapters
    assert half is not None
    assert half.slot_bytes == 3 * 8 * 128 * 2


@pytest.mark.parametrize(("own", "expected"), [({}, (1.0, 0.3)), ({"ttft_s": 0.5}, (0.5, 0.3))])
def test_an_adapter_promises_what_its_base_does_unless_it_says_otherwise(
    own: dict[str, float], expected: tuple[float, float]
) -> None:
    made = specs(model("ant", ttft_s=1.0, tpot_s=0.3), adapter("a", "ant", **own))["a"]
    assert (made.slo.ttft_s, made.slo.tpot_s) == expected
    assert (made.served_by, made.name) == ("ant", "a")


def test_an_adapter_without_its_base_is_left_out() -> None:
    assert specs(adapter("a", "gone"), adapter("b", "a")) == {}
