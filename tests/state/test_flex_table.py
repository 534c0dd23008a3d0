"""Does what was accepted stay, in order, with its tokens, until its answer left?"""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from sqlite_utils import Database

from llmhostd.domain.ids import ModelName
from llmhostd.domain.request import FinishReason
from llmhostd.state.database import open_database
from llmhostd.state.flex import ChoiceProgress, FlexCall, FlexTable
from llmhostd.state.migrations import migrate
from llmhostd.state.policy import FlexPolicy


def call(name: str, *choices: ChoiceProgress, caller_id: str = "") -> FlexCall:
    return FlexCall(
        id=name, caller_id=caller_id, endpoint="chat", body=b'{"\x00": 1}', model=ModelName("ant"), arrived_at=1.5,
        choices=choices or (ChoiceProgress(seed=7),),
    )  # fmt: skip


def test_calls_come_back_in_order_of_arrival_with_their_tokens(tmp_path: Path) -> None:
    far = ChoiceProgress(seed=2**64, tokens=(5, 2**31 - 1, 0), cached_tokens=3, finish=FinishReason.LENGTH)
    calls = [call("zebra", ChoiceProgress(seed=-4), ChoiceProgress(seed=5)), call("ant"), call("bee")]
    with open_database(tmp_path) as db:
        for one in calls:
            FlexTable(db).put(one)
        FlexTable(db).save({("zebra", 1): far, ("gone", 0): far})
        assert FlexTable(db).remove("ant")
        assert not FlexTable(db).remove("ant")
    with open_database(tmp_path) as db:
        assert FlexTable(db).waiting() == ["zebra", "bee"]
        assert FlexTable(db).find("zebra") == call("zebra", ChoiceProgress(seed=-4), far)
        assert FlexTable(db).find("bee") == calls[2]
        assert sorted(row["call_id"] for row in db["flex_choices"].rows) == ["bee", "zebra", "zebra"]


def test_a_call_is_found_by_its_own_id_first_then_by_its_callers_newest() -> None:
    db = Database(memory=True)
    migrate(db)
    table = FlexTable(db)
    for one in (call("a", caller_id="mine"), call("b", caller_id="mine"), call("mine2", caller_id="a")):
        table.put(one)
    assert [found.id for name in ("a", "mine") if (found := table.find(name))] == ["a", "b"]
    assert table.find("nobody") is None
    assert table.find("") is None


@settings(max_examples=40, deadline=None)
@given(ends=st.lists(st.integers(0, 9), unique=True), kept=st.integers(0, 4))
def test_no_more_answers_are_kept_than_the_policy_says_and_no_waiting_call_is_lost(ends: list[int], kept: int) -> None:
    db = Database(memory=True)
    migrate(db)
    table, policy = FlexTable(db), FlexPolicy(answers_kept=kept)
    every = [f"c{number}" for number in range(10)]
    for name in every:
        table.put(call(name))
    for number in ends:
        table.end(every[number], 200, b"{}", policy)
    ended = [every[number] for number in ends]
    assert table.waiting() == [name for name in every if name not in ended]
    assert [name for name in ended if table.find(name)] == (ended[-kept:] if kept else [])


def test_old_answers_go(tmp_path: Path) -> None:
    with open_database(tmp_path) as db:
        FlexTable(db).put(call("old"))
        FlexTable(db).put(call("new"))
        FlexTable(db).end("old", 200, b"{}", FlexPolicy())
        found = FlexTable(db).find("old")
        assert found is not None
        assert (found.status, found.answer) == (200, b"{}")
        db.execute("update flex_calls set ended_at = ended_at - 10 where id = 'old'")
        FlexTable(db).end("new", 400, b"{}", FlexPolicy(answers_keep_s=5.0))
        assert FlexTable(db).find("old") is None
        assert list(db["flex_choices"].rows_where("call_id = 'old'")) == []
