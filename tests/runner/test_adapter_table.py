import pytest

from llmhostd.domain.errors import EngineError
from llmhostd.engines.adapter_table import AdapterTable


def place(table: AdapterTable, identity: str, keep: str = "") -> int:
    slot = table.make_room(keep)
    table.put(slot, identity)
    return slot


def test_the_least_recently_used_that_need_not_stay_goes() -> None:
    table = AdapterTable(3)
    assert [place(table, name) for name in "abc"] == [0, 1, 2]
    assert table.use("a") == 0
    assert place(table, "d", keep="b") == 2
    assert "c" not in table
    assert place(table, "e", keep="bd") == 0
    assert [table.use(name) for name in "bde"] == [1, 2, 0]
    with pytest.raises(EngineError, match="no room for another adapter: an iteration uses all 3"):
        table.make_room("bde")
    with pytest.raises(KeyError):
        table.use("c")


def test_a_slot_that_could_not_be_filled_is_free() -> None:
    table = AdapterTable(1)
    place(table, "a")
    table.put(table.make_room(""), None)
    assert "a" not in table
    assert place(table, "b") == 0
