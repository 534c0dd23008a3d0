"""What does a person see while the daemon is not there, is another program, or comes back?"""

import asyncio

from llmhostd_tui.app import Top
from llmhostd_tui.client import DaemonClient
from recorded_daemon import RecordedDaemon
from screen_text import until


def test_no_daemon_says_how_to_start_one_and_waits_for_it() -> None:
    daemon = RecordedDaemon().start()
    daemon.stop()

    async def scenario() -> None:
        async with Top(DaemonClient(daemon.url)).run_test(size=(80, 24)) as pilot:
            text = await until(pilot, lambda text: "Tried 2 times" in text)
            assert f"nothing listens at {daemon.url}" in text
            assert "llmhostd serve" in text
            assert "make run" in text
            daemon.start()
            await until(pilot, lambda text: "req-1201" in text)

    asyncio.run(scenario())
    daemon.stop()


def test_a_restarted_daemon_is_found_again() -> None:
    daemon = RecordedDaemon().start()

    async def scenario() -> None:
        async with Top(DaemonClient(daemon.url)).run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda text: "waits for heron-1b" in text)
            daemon.stop()
            text = await until(pilot, lambda text: "✗ no answer" in text)
            assert "trying again" in text
            assert "req-1201" in text, "the last that was known stays"
            daemon.events.append(daemon.events[0] | {"sequence": 13, "because": "it came back"})
            daemon.start()
            text = await until(pilot, lambda text: "● live" in text and "it came back" in text)
            assert text.count("waits for heron-1b") == 1, "no decision is shown twice"

    asyncio.run(scenario())
    assert "12" in daemon.resumed_after, "the events go on after the last one that was seen"
    daemon.stop()


def test_another_program_at_that_address_is_named() -> None:
    daemon = RecordedDaemon().start()
    daemon.answers.clear()

    async def scenario() -> None:
        async with Top(DaemonClient(daemon.url)).run_test(size=(100, 24)) as pilot:
            text = await until(pilot, lambda text: "answers, but not as llmhostd does" in text)
            assert "404 at /api/v1/host" in text

    asyncio.run(scenario())
    daemon.stop()


def test_an_answer_of_another_shape_is_no_crash() -> None:
    daemon = RecordedDaemon().start()
    del daemon.answers["nodes"][0]["busy"]

    async def scenario() -> None:
        async with Top(DaemonClient(daemon.url)).run_test(size=(160, 24)) as pilot:
            text = await until(pilot, lambda text: "not as this version of llmhostd does" in text)
            assert "busy" in text

    asyncio.run(scenario())
    daemon.stop()


def test_a_malformed_url_is_said_not_thrown() -> None:
    async def scenario() -> None:
        async with Top(DaemonClient("ftp://nowhere")).run_test(size=(100, 24)) as pilot:
            await until(pilot, lambda text: "No daemon" in text and "ftp" in text)

    asyncio.run(scenario())
