"""Do the tables give back what was put into them, across processes and versions?"""

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlite_utils import Database

from llmhostd.domain.errors import OperatorError
from llmhostd.domain.ids import HardwareKey, ModelName, NodeId, ShapeKey
from llmhostd.domain.model import Architecture, ComputePrecision, KvPrecision, ModelShape, Slo, WeightFormat
from llmhostd.domain.profile import DecodeSample, PrefillSample, Profile
from llmhostd.state.database import open_database
from llmhostd.state.migrations import MIGRATIONS, migrate
from llmhostd.state.models import ModelTable, RegisteredModel, spec_of
from llmhostd.state.placements import Placement, PlacementTable
from llmhostd.state.policy import PrecisionPolicy, SloPolicy
from llmhostd.state.profiles import ProfileTable
from llmhostd.state.usage import Usage, UsageBook, UsageTable

SHAPE = ModelShape(
    architecture=Architecture(
        family="llama", layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=128, vocab=256,
        max_context_tokens=512, norm_eps=1e-5, rope_theta=1e4, eos_token_ids=(2, 3),
    ),
    weights=WeightFormat.BF16, compute=ComputePrecision.F32, kv=KvPrecision.U8, weight_bytes=1000,
    kv_bytes_per_token=96,
)  # fmt: skip


def model(name: str, **more: object) -> RegisteredModel:
    return RegisteredModel(name=ModelName(name), path=f"/m/{name}", shape=SHAPE, parameters=7, **more)  # type: ignore[arg-type]


def placement(name: str, used_at: float, *, resident: bool = False) -> Placement:
    return Placement(model=ModelName(name), node_id=NodeId("cpu0"), resident=resident, used_at=used_at)


def mode(db: Database) -> int:
    ((found,),) = db.execute("pragma synchronous")
    return int(found)


def test_models_survive_a_restart_and_come_by_name(tmp_path: Path) -> None:
    rows = [model("zebra", ttft_s=0.5, source="demo", added_at=1.5), model("ant", compute="f32", kv="bf16")]
    with open_database(tmp_path) as db:
        for row in rows:
            ModelTable(db).put(row)
    with open_database(tmp_path) as db:
        assert ModelTable(db).all() == rows[::-1]


def test_putting_a_model_again_replaces_it_and_removing_says_whether_it_was_there(tmp_path: Path) -> None:
    with open_database(tmp_path) as db:
        table = ModelTable(db)
        table.put(model("ant"))
        table.put(model("ant", tpot_s=0.1))
        assert table.all() == [model("ant", tpot_s=0.1)]
        assert table.remove(ModelName("ant"))
        assert not table.remove(ModelName("ant"))
        assert table.all() == []


@pytest.mark.parametrize(
    ("weights", "bf16_hardware", "wanted", "expected"),
    [
        (WeightFormat.BF16, True, "", ComputePrecision.BF16),
        (WeightFormat.BF16, False, "", ComputePrecision.F32),
        (WeightFormat.INT8, True, "", ComputePrecision.F32),
        (WeightFormat.INT8, True, "bf16", ComputePrecision.BF16),
        (WeightFormat.F32, True, "f32", ComputePrecision.F32),
    ],
)
def test_compute_precision_follows_model_then_hardware(
    weights: WeightFormat, bf16_hardware: bool, wanted: str, expected: ComputePrecision
) -> None:
    shape = ModelShape(**{name: getattr(SHAPE, name) for name in SHAPE.__struct_fields__} | {"weights": weights})
    row = RegisteredModel(name=ModelName("a"), path="/a", shape=shape, parameters=1, compute=wanted)
    spec = spec_of(row, SloPolicy(), PrecisionPolicy(), bf16_hardware=bf16_hardware)
    assert spec.shape.compute is expected


def test_spec_takes_kv_and_promise_of_the_model_before_those_of_the_configuration() -> None:
    default = spec_of(model("a"), SloPolicy(ttft_s=9.0), PrecisionPolicy(kv="bf16"), bf16_hardware=False)
    assert (default.slo, default.shape.kv) == (Slo(ttft_s=9.0, tpot_s=0.2), KvPrecision.BF16)
    assert default.shape.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2
    own = spec_of(model("a", kv="f32", ttft_s=1.0, tpot_s=0.5), SloPolicy(), PrecisionPolicy(), bf16_hardware=False)
    assert (own.slo, own.shape.kv) == (Slo(ttft_s=1.0, tpot_s=0.5), KvPrecision.F32)


def test_unknown_precision_names_the_known_ones() -> None:
    with pytest.raises(OperatorError, match="compute: is 'fp8'; expected one of auto, f32, bf16"):
        spec_of(model("a", compute="fp8"), SloPolicy(), PrecisionPolicy(), bf16_hardware=False)


def test_profiles_are_kept_per_shape_and_hardware(tmp_path: Path) -> None:
    def profile(hardware: str, load_s: float) -> Profile:
        return Profile(
            shape_key=ShapeKey("s"), hardware_key=HardwareKey(hardware), load_s=load_s, first_run_s=0.1,
            prefill=(PrefillSample(chunk_tokens=64, past_tokens=0, seconds=0.01),),
            decode=(DecodeSample(batch=1, context_tokens=64, seconds=0.005),), resident_bytes=5, warm_bytes=1,
        )  # fmt: skip

    with open_database(tmp_path) as db:
        for one in (profile("a", 1.0), profile("b", 2.0), profile("a", 3.0)):
            ProfileTable(db).put(one)
    with open_database(tmp_path) as db:
        assert ProfileTable(db).all() == [profile("a", 3.0), profile("b", 2.0)]


usages = st.builds(Usage, requests=st.integers(0, 9), prompt_tokens=st.integers(0, 99), output_tokens=st.integers(0, 9))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), usages, st.booleans())))
def test_usage_adds_up_however_often_it_is_flushed(history: list[tuple[str, Usage, bool]]) -> None:
    db = Database(memory=True)
    migrate(db)
    book, table, expected = UsageBook(), UsageTable(db), {}
    for name, usage, flush in history:
        book.count(ModelName(name), usage)
        expected[name] = expected.get(name, Usage()) + usage
        if flush:
            table.add(book.take())
    table.add(book.take())
    sums: dict[str, Usage] = {}
    for (_, name), usage in table.all().items():
        sums[name] = sums.get(name, Usage()) + usage
    assert sums == expected


def test_a_reader_does_not_wait_for_the_writer(tmp_path: Path) -> None:
    with open_database(tmp_path) as writer, writer.atomic():
        PlacementTable(writer).replace([placement("ant", 1.0)])
        with open_database(tmp_path) as reader:
            assert PlacementTable(reader).all() == []


def test_placements_replace_each_other_and_come_last_used_first(tmp_path: Path) -> None:
    with open_database(tmp_path) as db:
        PlacementTable(db).replace([placement("ant", 1.0), placement("bee", 2.0)])
        PlacementTable(db).replace([placement("bee", 2.0), placement("cat", 5.0, resident=True), placement("dog", 3.0)])
    with open_database(tmp_path) as db:
        assert [one.model for one in PlacementTable(db).all()] == ["cat", "dog", "bee"]
        assert PlacementTable(db).all()[0] == placement("cat", 5.0, resident=True)


def test_what_must_not_be_lost_is_on_the_disk_when_it_is_said_to_be(tmp_path: Path) -> None:
    """SQLite syncs its log at a commit in the mode `full` (2) only."""
    modes: list[int] = []
    with open_database(tmp_path) as db:
        db.conn.create_function("note", 0, lambda: modes.append(mode(db)))
        db.execute("create temp trigger noted after insert on models begin select note(); end")
        ModelTable(db).put(model("ant"))
        assert (modes, mode(db)) == ([2], 1)


def test_migrations_run_once(tmp_path: Path) -> None:
    with open_database(tmp_path) as db:
        assert migrate(db) == []
        assert [row["name"] for row in db["migrations"].rows] == list(MIGRATIONS)


def test_failed_migration_leaves_nothing_behind(tmp_path: Path) -> None:
    def broken(db: Database) -> None:
        db["half"].create({"id": int})
        db.execute("insert into nowhere values (1)")

    with open_database(tmp_path) as db:
        with pytest.raises(sqlite3.OperationalError):
            migrate(db, MIGRATIONS | {"9999_broken": broken})
        assert "half" not in db.table_names()
    with open_database(tmp_path) as db:
        assert migrate(db) == []


def test_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    with open_database(tmp_path) as db:
        db["migrations"].insert({"name": "0099_future", "applied_at": 0.0})
    with pytest.raises(OperatorError, match=r"newer llmhostd .*0099_future"):
        open_database(tmp_path)


def test_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"no database at all, but long enough to be looked at" * 20)
    with pytest.raises(OperatorError, match=r"state\.db: file is not a database"):
        open_database(tmp_path)
