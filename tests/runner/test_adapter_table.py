import pytest

from llmhostd.domain.errors import EngineError
from llmhostd.engines.adapter_table import AdapterTable


def place(table: AdapterTable, identity: str) -> int:
    slot = table.make_room()
    table.put(slot, identity)
    return slot


def test_the_least_recently_used_idle_adapter_goes() -> None:
    table = AdapterTable(3)
    assert [place(table, name) for name in "abc"] == [0, 1, 2]
    held = table.hold("a")
    table.release(table.hold("b"))
    assert held == 0
    assert place(table, "d") == 2
    assert "c" not in table
    assert place(table, "e") == 1
    assert "a" in table
    assert table.hold("d") == 2
    table.hold("e")
    with pytest.raises(EngineError, match="no room for another adapter: requests use all 3"):
        table.make_room()
    table.hold("a")
    table.release(held)
    with pytest.raises(EngineError):
        table.make_room()
    table.release(held)
    assert place(table, "f") == 0


def test_a_slot_that_could_not_be_filled_is_free() -> None:
    table = AdapterTable(1)
    place(table, "a")
    table.put(table.make_room(), None)
    assert "a" not in table
    assert place(table, "b") == 0
    with pytest.raises(KeyError):
        table.hold("a")
