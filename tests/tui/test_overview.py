"""Does a person see what the daemon says, at every size, and only what they asked for?"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from llmhostd_tui.app import Top
from llmhostd_tui.client import DaemonClient
from recorded_daemon import RecordedDaemon
from screen_text import until
from textual.pilot import Pilot

Act = Callable[[Pilot[None]], Awaitable[None]]


@pytest.fixture
def daemon() -> Iterator[RecordedDaemon]:
    one = RecordedDaemon().start()
    yield one
    one.stop()


def watch(daemon: RecordedDaemon, act: Act, size: tuple[int, int] = (160, 50)) -> None:
    async def scenario() -> None:
        app = Top(DaemonClient(daemon.url))
        async with app.run_test(size=size) as pilot:
            await act(pilot)

    asyncio.run(scenario())


def line_of(text: str, word: str) -> str:
    return next(line for line in text.splitlines() if word in line)


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (160, 50), (220, 60)])
def test_shows_nodes_instances_requests_and_decisions(daemon: RecordedDaemon, size: tuple[int, int]) -> None:
    finch = next(one for one in daemon.answers["instances"] if one["id"] == "finch-85m@cpu0#2")
    finch |= {"start_s": 0.31, "estimated_start_s": 0.29}

    async def act(pilot: Pilot[None]) -> None:
        text = await until(pilot, lambda text: "waits for heron-1b" in text and "req-1201" in text)
        assert "5.5 / 12.0 GiB" in line_of(text, "cpu0 ")
        assert "measuring heron-1b" in text
        assert "34 of 96 samples" in text
        for told in ("● resident", " %", "310 ms ~290 ms"):
            assert told in line_of(text, "finch-85m@cpu0#2")
        assert "◐ warm" in line_of(text, "robin-30m@cpu0#4")
        assert "late 410 ms" in line_of(text, "req-1201")
        assert "1 move" in line_of(text, "req-1201")
        assert "99.5 % SLO met" in text
        assert "3 refused" in text

    watch(daemon, act, size)


def test_requests_stand_by_headroom_and_best_effort_last(daemon: RecordedDaemon) -> None:
    async def act(pilot: Pilot[None]) -> None:
        text = await until(pilot, lambda text: "req-1102" in text)
        heading = next(at for at, line in enumerate(text.splitlines()) if "HEADROOM" in line)
        rows = text.splitlines()[heading + 1 : heading + 8]
        order = ["req-1201", "req-1198", "req-1203", "req-1199", "req-1204", "req-1190", "req-1102"]
        assert all(name in row for name, row in zip(order, rows, strict=True))

    watch(daemon, act)


def test_a_stream_that_moves_says_where_it_goes(daemon: RecordedDaemon) -> None:
    moving = next(one for one in daemon.answers["requests"] if one["id"] == "req-1198")
    moving |= {"moving_to": "finch-85m@cpu0#2", "moves": 1}

    async def act(pilot: Pilot[None]) -> None:
        text = await until(pilot, lambda text: "req-1198" in text)
        assert "→ cpu0 " in line_of(text, "req-1198")
        assert "→" not in line_of(text, "req-1201")

    watch(daemon, act)


def test_headroom_bar_shrinks_to_nothing(daemon: RecordedDaemon) -> None:
    async def act(pilot: Pilot[None]) -> None:
        text = await until(pilot, lambda text: "req-1190" in text)
        lengths = [line_of(text, name)[:60].count("━") for name in ("req-1190", "req-1199", "req-1203", "req-1201")]
        assert lengths == sorted(lengths, reverse=True)
        assert len(set(lengths)) == len(lengths)
        assert lengths[-1] == 0

    watch(daemon, act)


def test_what_is_degraded_is_said(daemon: RecordedDaemon) -> None:
    daemon.answers["nodes"][0]["caveats"] = ["no amx_bf16: prefill is slower"]
    daemon.answers["models"][4] |= {"state": "quarantined", "because": "it took cpu0 down 3 times in a row"}

    async def act(pilot: Pilot[None]) -> None:
        text = await until(pilot, lambda text: "quarantined" in text)
        assert "model tit-5m is quarantined: it took cpu0 down 3 times in a row" in text
        assert "cpu0: no amx_bf16: prefill is slower" in text
        daemon.answers["nodes"][0]["up"] = False
        text = await until(pilot, lambda text: "◌ cpu0" in text)
        assert "node cpu0 starts; whoever needs it waits" in text
        assert "starting its worker" in text
        daemon.answers["nodes"][0]["restarts"] = 1
        text = await until(pilot, lambda text: "✗ cpu0" in text)
        assert "restarting its worker" in text
        assert text.index("node cpu0 is down") < text.index("tit-5m is quarantined")

    watch(daemon, act)


def test_filter_finds_and_hides_while_typing(daemon: RecordedDaemon) -> None:
    async def act(pilot: Pilot[None]) -> None:
        await until(pilot, lambda text: "back to warm" in text)
        await pilot.press("slash", *"submit -heron")
        text = await until(pilot, lambda text: "back to warm" not in text)
        assert "best effort: queued" in text
        assert "waits for heron-1b" not in text
        await pilot.press("enter", "escape")
        await until(pilot, lambda text: "back to warm" in text and "waits for heron-1b" in text)
        await pilot.press("slash", *"nonsense")
        await until(pilot, lambda text: "No decision has 'nonsense'." in text)

    watch(daemon, act)


def test_iterations_are_at_their_node_and_in_the_list_when_asked_for(daemon: RecordedDaemon) -> None:
    async def act(pilot: Pilot[None]) -> None:
        daemon.answers["nodes"][0]["profiling"] = ""
        text = await until(pilot, lambda text: "runs finch-85m@cpu0#2" in text)
        assert "headroom 690 ms is the least" in line_of(text, "runs finch-85m@cpu0#2")
        assert "headroom 41 ms" not in text
        await pilot.press("i")
        text = await until(pilot, lambda text: "headroom 41 ms" in text)
        assert text.index("waits for heron-1b") < text.index("headroom 41 ms") < text.index("first token in 0.31 s")
        await pilot.press("i")
        await until(pilot, lambda text: "headroom 41 ms" not in text)

    watch(daemon, act)


def test_letters_in_the_filter_are_no_commands(daemon: RecordedDaemon) -> None:
    async def act(pilot: Pilot[None]) -> None:
        await until(pilot, lambda text: "● live" in text)
        await pilot.press("slash", "q", "p", "i")
        text = await until(pilot, lambda text: "No decision has 'qpi'." in text)
        assert "paused" not in text

    watch(daemon, act)


def test_pause_freezes_and_keeps_what_happens(daemon: RecordedDaemon) -> None:
    async def act(pilot: Pilot[None]) -> None:
        await until(pilot, lambda text: "waits for heron-1b" in text)
        await pilot.press("p")
        daemon.events.append(daemon.events[0] | {"sequence": 13, "because": "something new"})
        daemon.answers["host"]["refused"] = 77
        text = await until(pilot, lambda text: "paused, 1 more" in text)
        assert "something new" not in text
        assert "77 refused" not in text
        await pilot.press("p")
        await until(pilot, lambda text: "something new" in text and "77 refused" in text and "paused" not in text)

    watch(daemon, act)


def test_enter_says_all_of_a_request_and_what_was_decided_about_it(daemon: RecordedDaemon) -> None:
    async def act(pilot: Pilot[None]) -> None:
        await until(pilot, lambda text: "moves with its" in text)
        await pilot.press("enter")
        text = await until(pilot, lambda text: "Decisions about req-1201" in text)
        assert "-410 ms" in text
        assert "it had the longest headroom" in text
        daemon.answers["requests"] = daemon.answers["requests"][1:]
        await until(pilot, lambda text: "request req-1201  (gone)" in text)
        await pilot.press("escape")
        await until(pilot, lambda text: "Decisions about" not in text)

    watch(daemon, act)


def test_rates_are_named_with_their_unit(daemon: RecordedDaemon) -> None:
    async def act(pilot: Pilot[None]) -> None:
        await until(pilot, lambda text: "moves with its" in text)
        await pilot.press("shift+tab", "enter")
        text = await until(pilot, lambda text: "iterations per second" in text)
        assert "tokens per second" in text
        assert "/s" in line_of(text, "disk bandwidth")

    watch(daemon, act)


def test_the_cursor_stays_on_its_request(daemon: RecordedDaemon) -> None:
    async def act(pilot: Pilot[None]) -> None:
        await until(pilot, lambda text: "▌ req-1201" in text)
        await pilot.press("down", "down")
        await until(pilot, lambda text: "▌ req-1203" in text)
        daemon.answers["requests"][0]["headroom_s"] = 9.0
        text = await until(pilot, lambda text: "9.00 s" in text)
        assert "▌ req-1203" in text

    watch(daemon, act)


def test_help_says_what_the_words_mean(daemon: RecordedDaemon) -> None:
    async def act(pilot: Pilot[None]) -> None:
        await until(pilot, lambda text: "● live" in text)
        await pilot.press("question_mark")
        text = await until(pilot, lambda text: "nobody waits" in text)
        assert "compiled, never run" in text

    watch(daemon, act)


def test_tiny_terminal_shows_who_is_late(daemon: RecordedDaemon) -> None:
    async def act(pilot: Pilot[None]) -> None:
        text = await until(pilot, lambda text: "late 410 ms" in text)
        assert "cpu0" in text
        for columns, rows in [(20, 4), (1, 1), (3, 40), (300, 3)]:
            await pilot.resize_terminal(columns, rows)
            await pilot.pause()
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda text: "DECISIONS" in text and "INSTANCE" in text)

    watch(daemon, act, (40, 10))


def test_tab_goes_through_all_tables(daemon: RecordedDaemon) -> None:
    async def act(pilot: Pilot[None]) -> None:
        await until(pilot, lambda text: "▌" in text)
        seen = set()
        for _ in range(4):
            await pilot.press("tab")
            assert pilot.app.focused is not None
            seen.add(pilot.app.focused.id)
        assert seen == {"nodes", "requests", "instances", "decisions"}

    watch(daemon, act)


def test_names_are_text_not_markup(daemon: RecordedDaemon) -> None:
    daemon.answers["requests"][0]["model"] = "[b]a[/x]"
    daemon.events[-1]["because"] = "tokens [/] of [1, 2]"

    async def act(pilot: Pilot[None]) -> None:
        await until(pilot, lambda text: "[b]a[/x]" in text and "tokens [/] of [1, 2]" in text)
        await pilot.press("enter")
        await until(pilot, lambda text: "request req-1201" in text)

    watch(daemon, act)


def test_over_a_unix_socket(tmp_path: Path) -> None:
    daemon = RecordedDaemon(socket=tmp_path / "llmhostd.sock").start()

    async def scenario() -> None:
        app = Top(DaemonClient(socket=tmp_path / "llmhostd.sock"))
        async with app.run_test(size=(160, 50)) as pilot:
            await until(pilot, lambda text: "req-1201" in text and "waits for heron-1b" in text)

    asyncio.run(scenario())
    daemon.stop()
