"""Does a person see who holds which bytes, and how that changed?"""

import asyncio
from collections import deque
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmhostd_tui.app import Top
from llmhostd_tui.client import DaemonClient
from llmhostd_tui.memory import KEPT_S, MemoryHistory, Moment
from llmhostd_tui.widgets.area import EIGHTHS, FINE, area
from recorded_daemon import RecordedDaemon
from rich.console import Console
from screen_text import until

from llmhostd.domain.ids import NodeId

GIB = 1 << 30
CPU0 = NodeId("cpu0")
CONSOLE = Console()
layers = st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3).map(sorted), min_size=1, max_size=8)


@pytest.fixture
def daemon() -> Iterator[RecordedDaemon]:
    one = RecordedDaemon().start()
    yield one
    one.stop()


@given(layers, st.integers(1, 9))
def test_the_lowest_layer_is_as_high_as_its_share(columns: list[list[float]], height: int) -> None:
    lines = area(columns, height, ("red", "green", "blue"), "black")
    assert [len(line.plain) for line in lines] == [len(columns)] * height
    for at, (share, *_) in enumerate(columns):
        styles = [str(line.get_style_at_offset(CONSOLE, at)) for line in lines]
        eighths = sum(
            EIGHTHS.index(line.plain[at]) for line, style in zip(lines, styles, strict=True) if style.startswith("red")
        )
        assert abs(eighths - share * height * FINE) <= 1


def test_what_was_not_heard_is_as_before_and_nothing_before_the_first() -> None:
    small, large = Moment(used=1, held=2, promised=2, budget=9), Moment(used=3, held=8, promised=8, budget=9)
    heard = deque([(5.0, small), (31.0, large), (32.0, small), (45.0, small), (KEPT_S - 1.0, small)])
    columns = MemoryHistory({CPU0: heard}).columns(CPU0, 30)
    # Ten seconds each: the peak of the fourth is seen, and lasts until something else is heard.
    assert columns == [small] * 3 + [large] + [small] * 26
    later = MemoryHistory({CPU0: deque([(KEPT_S + 25.0, small)])})
    assert later.columns(CPU0, 30) == [None] * 29 + [small]
    assert later.columns(NodeId("cpu1"), 3) == [None] * 3


def test_every_node_has_its_amounts_its_past_and_its_instances(daemon: RecordedDaemon) -> None:
    (node,) = daemon.answers["nodes"]
    other = node | {"id": "gpu0", "kind": "gpu", "engine": "profiled", "draining": True, "budget_bytes": 24 * GIB}
    daemon.answers["nodes"] = [node, other]

    async def scenario() -> None:
        async with Top(DaemonClient(daemon.url)).run_test(size=(160, 50)) as pilot:
            await until(pilot, lambda text: "● live" in text and "cpu0" in text)
            await pilot.press("m")
            text = await until(pilot, lambda text: "held, not used" in text and "gpu0" in text)
            lines = text.splitlines()
            assert any("cpu0  KV resizes: 1.25 s" in line and "cpu, openvino" in line for line in lines)
            assert any("gpu0  draining" in line and "gpu, profiled" in line for line in lines)
            assert "used 4.40 GiB  held 5.50 GiB  promised 6.00 GiB  budget 12.00 GiB" in text
            assert any("finch-85m@cpu0#2" in line and "KV " in line and " of " in line for line in lines)
            node["held_bytes"] = node["promised_bytes"] = 11 * GIB
            node["used_bytes"] = 10 * GIB
            await until(pilot, lambda text: "used 10.00 GiB  held 11.00 GiB" in text)
            await pilot.press("escape")
            await until(pilot, lambda text: "HEADROOM" in text)

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (220, 60)])
def test_it_fits_any_terminal(daemon: RecordedDaemon, size: tuple[int, int]) -> None:
    async def scenario() -> None:
        async with Top(DaemonClient(daemon.url)).run_test(size=size) as pilot:
            await until(pilot, lambda text: "cpu0" in text)
            await pilot.press("m")
            text = await until(pilot, lambda text: "used 4.40 GiB" in text and "5 m 00 s ago" in text)
            lines = text.splitlines()
            assert "KV pool free" in text, "all of the legend can be read"
            assert all(" of " in line for line in lines if "finch-85m@cpu0#2" in line), "an instance is one line"

    asyncio.run(scenario())
