"""Iterations begin on the weights that are there; whatever comes of the rest, nobody hears a wrong token."""

import asyncio
import time
from pathlib import Path

from box import NODE, Box, load_frame, running_box, submit_frame
from drive import alone
from reference_engine import ReferenceInstance, write_checkpoint

from llmhostd.domain.commands import CancelRequest, UnloadInstance
from llmhostd.domain.ids import InstanceId, RequestId
from llmhostd.domain.model import ModelState
from llmhostd.domain.reports import InstanceReported, IterationReported, LoadFailed, RequestReturned
from llmhostd.domain.request import Sampling
from llmhostd.engines.runner import Runner

GREEDY = Sampling(max_tokens=12, temperature=0.0, ignore_eos=True)
PROMPT, OTHER = list(range(5, 30)), list(range(40, 80))


def expected(seed: int, prompt: list[int]) -> list[int]:
    runner = Runner(ReferenceInstance(seed, {}))
    runner.resize(64)
    return alone(runner, prompt, GREEDY)


async def begun(checkpoint: Path) -> None:
    """Wait until an iteration has begun there, for the first time or again."""
    (checkpoint / "begun").unlink(missing_ok=True)

    def wait() -> None:
        end_s = time.monotonic() + 30
        while not (checkpoint / "begun").exists():
            assert time.monotonic() < end_s
            time.sleep(0.005)

    await asyncio.to_thread(wait)


def states(box: Box, name: str) -> list[ModelState]:
    return [one.state for one in box.all(InstanceReported) if one.instance_id == name]


def test_what_begins_while_weights_come_streams_what_it_would_have(tmp_path: Path) -> None:
    filling = write_checkpoint(tmp_path / "m", seed=1, fills=True)

    async def scenario() -> None:
        async with running_box() as box:
            box.supervisor.send(load_frame("n", write_checkpoint(tmp_path / "n", seed=2)))
            box.supervisor.send(load_frame("m", filling))
            box.supervisor.send(submit_frame("r", "m", PROMPT, GREEDY))
            await begun(filling)
            # Others compute meanwhile, and what begins with another request beside it begins anew.
            assert await box.answer(submit_frame("x", "n", OTHER, GREEDY)) == expected(2, OTHER)
            box.supervisor.send(submit_frame("s", "m", OTHER, GREEDY))
            await begun(filling)
            assert set(states(box, "m")) == {ModelState.LOADING}
            assert all(one.instance_id == "n" for one in box.all(IterationReported))
            (filling / "rest").touch()
            await box.until(lambda: {"r", "s"} <= box.finished)
            assert box.streams[RequestId("r")] == expected(1, PROMPT)
            assert box.streams[RequestId("s")] == expected(1, OTHER)
            assert states(box, "m").count(ModelState.WARM) == 1
            warm = next(one for one in box.all(InstanceReported) if one.state is ModelState.WARM and one.took_s)
            assert warm.took_s > 0

    asyncio.run(scenario())


def test_who_leaves_while_it_fills_leaves_nothing_behind(tmp_path: Path) -> None:
    filling = write_checkpoint(tmp_path / "m", seed=1, fills=True)

    async def scenario() -> None:
        async with running_box() as box:
            box.supervisor.send(load_frame("m", filling))
            box.supervisor.send(submit_frame("r", "m", PROMPT, GREEDY))
            await begun(filling)
            box.supervisor.send(CancelRequest(node_id=NODE, request_id=RequestId("r"), because="caller gone"))
            box.supervisor.send(submit_frame("s", "m", OTHER, GREEDY))
            await begun(filling)
            (filling / "rest").touch()
            await box.until(lambda: "s" in box.finished)
            assert box.streams == {RequestId("s"): expected(1, OTHER)}
            box.supervisor.send(UnloadInstance(node_id=NODE, instance_id=InstanceId("m"), because="no longer wanted"))
            await box.reached("m", ModelState.COLD)

    asyncio.run(scenario())


def test_damage_found_after_an_iteration_began_sends_nothing_and_names_the_chunk(tmp_path: Path) -> None:
    filling = write_checkpoint(tmp_path / "m", seed=1, fills=True)

    async def scenario() -> None:
        async with running_box() as box:
            box.supervisor.send(load_frame("m", filling))
            box.supervisor.send(submit_frame("r", "m", PROMPT, GREEDY))
            await begun(filling)
            (filling / "rest").write_text("damaged")
            failed = await box.next(LoadFailed)
            assert (failed.instance_id, failed.error) == ("m", f"{filling / 'rest'}: is damaged")
            assert [one.request_id for one in box.all(RequestReturned)] == ["r"]
            assert not box.all(IterationReported)
            # The builder and the node go on.
            (filling / "rest").write_text("mended")
            box.supervisor.send(load_frame("m2", filling))
            assert await box.answer(submit_frame("r", "m2", PROMPT, GREEDY)) == expected(1, PROMPT)

    asyncio.run(scenario())
