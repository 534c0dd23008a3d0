"""Real worker processes under a real supervisor, computing with the reference engine."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from box import NODE, SHAPE, Box, load_frame, running_box, start_frame, submit_frame
from drive import alone
from reference_engine import ReferenceInstance, write_checkpoint

from llmhostd.compute.interpolated import Interpolated
from llmhostd.compute.profile_grid import DecodePoint, PrefillPoint, grid_for
from llmhostd.domain.commands import CancelRequest, RestInstance, UnloadInstance
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.ids import InstanceId, RequestId
from llmhostd.domain.model import ModelState
from llmhostd.domain.reports import (
    InstanceReported,
    IterationReported,
    LoadFailed,
    NodeDown,
    NodeUp,
    ProfileMeasured,
    ProfileProgressed,
    RequestFailed,
    RequestReturned,
)
from llmhostd.domain.request import Sampling
from llmhostd.engines.runner import Runner

GREEDY = Sampling(max_tokens=20, temperature=0.0, ignore_eos=True)
DRAWN = Sampling(max_tokens=20, temperature=1.3, seed=11, ignore_eos=True)
PROMPT = list(range(5, 30))


def expected(seed: int, prompt: list[int], sampling: Sampling) -> list[int]:
    runner = Runner(ReferenceInstance(seed, {}))
    runner.resize(64)
    return alone(runner, prompt, sampling)


def test_two_models_answer_and_an_unmeasured_one_is_measured_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_box() as box:
            assert box.all(NodeUp)[0].caveats == ("everything is slow",)
            box.supervisor.send(load_frame("a", write_checkpoint(tmp_path / "a", seed=1)))
            box.supervisor.send(load_frame("b", write_checkpoint(tmp_path / "b", seed=2), measured=False))
            answers = await asyncio.gather(
                box.answer(submit_frame("r1", "a", PROMPT, GREEDY)),
                box.answer(submit_frame("r2", "b", PROMPT, GREEDY)),
                box.answer(submit_frame("r3", "a", PROMPT, DRAWN)),
            )
            assert answers == [expected(1, PROMPT, GREEDY), expected(2, PROMPT, GREEDY), expected(1, PROMPT, DRAWN)]

            def measured_b() -> list[ProfileMeasured]:
                return [one for one in box.all(ProfileMeasured) if one.instance_id == "b"]

            measured = measured_b()[0]
            first_of_b = next(one for one in box.all(IterationReported) if one.instance_id == "b")
            assert box.heard.index(measured) < box.heard.index(first_of_b)
            await box.until(lambda: (last := box.all(ProfileProgressed)[-1]).done == last.total)
            await box.until(lambda: len(measured_b()) >= 3)
            coarse, fine, complete = (one.profile for one in measured_b())
            assert len(coarse.prefill) < len(fine.prefill) == len(complete.prefill)
            points = [PrefillPoint(chunk_tokens=p.chunk_tokens, past_tokens=p.past_tokens) for p in complete.prefill]
            points += [DecodePoint(batch=p.batch, context_tokens=p.context_tokens) for p in complete.decode]
            assert {str(one) for one in points} <= {str(one) for one in grid_for(SHAPE).points}
            assert Interpolated(complete), "its grids are full"
            assert complete.dense
            assert complete.checks
            assert complete.interpolation_error is not None
            assert complete.first_run_s >= 0
            assert complete.warm_bytes < complete.resident_bytes

    asyncio.run(scenario())


def test_killed_again_and_again_every_stream_ends_as_if_undisturbed(tmp_path: Path) -> None:
    prompts = {RequestId(f"r{n}"): [*PROMPT, n] for n in range(4)}
    kinds = {request_id: GREEDY if n % 2 else DRAWN for n, request_id in enumerate(prompts)}
    checkpoint = write_checkpoint(tmp_path / "m", seed=3, run_s=0.005)

    async def submit_all(box: Box) -> None:
        box.supervisor.send(load_frame("m", checkpoint))
        for request_id, prompt in prompts.items():
            if request_id not in box.finished:
                streamed = tuple(box.streams.get(request_id, ()))
                box.supervisor.send(submit_frame(request_id, "m", prompt, kinds[request_id], streamed))

    async def scenario() -> None:
        async with running_box() as box:
            await submit_all(box)
            for life in range(1, 6):
                before = len(box.all(IterationReported))
                await box.until(lambda: len(box.all(IterationReported)) >= before + 2)  # noqa: B023
                os.kill(box.supervisor.pid, signal.SIGKILL)
                down = await box.next(NodeDown, life)
                assert (down.suspect, down.because) == (None, "its worker was killed from outside (SIGKILL)")
                await box.next(NodeUp, life + 1)
                assert box.supervisor.restarts == life
                await submit_all(box)
            await box.until(lambda: box.finished == set(prompts))
            for request_id, prompt in prompts.items():
                assert box.streams[request_id] == expected(3, prompt, kinds[request_id])

    asyncio.run(scenario())


@pytest.mark.parametrize(("fault", "died_of"), [({"die_at_load": True}, "SIGABRT"), ({"die_at_run": 2}, "SIGSEGV")])
def test_a_crash_names_the_instance_in_use(tmp_path: Path, fault: dict[str, object], died_of: str) -> None:
    async def scenario() -> None:
        async with running_box() as box:
            box.supervisor.send(load_frame("innocent", write_checkpoint(tmp_path / "i", seed=1)))
            await box.reached("innocent", ModelState.WARM)
            box.supervisor.send(load_frame("culprit", write_checkpoint(tmp_path / "c", seed=2, **fault)))
            box.supervisor.send(submit_frame("r", "culprit", PROMPT, GREEDY))
            down = await box.next(NodeDown)
            assert down.suspect == "culprit"
            assert down.because == f"its worker crashed ({died_of}) while culprit was in use"
            await box.next(NodeUp, 2)

    asyncio.run(scenario())


def test_a_load_that_fails_and_requests_that_fail_leave_the_others_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_box() as box:
            box.supervisor.send(load_frame("nothing", tmp_path / "nowhere"))
            failed = await box.next(LoadFailed)
            assert failed.error == f"{tmp_path}/nowhere/reference.json: no such file"
            box.supervisor.send(load_frame("m", write_checkpoint(tmp_path / "m", seed=4, fail_at_run=2)))
            box.supervisor.send(submit_frame("unlucky", "m", PROMPT, GREEDY))
            returned = await box.next(RequestReturned)
            assert (returned.request_id, returned.because) == ("unlucky", "the reference engine was asked to fail")
            streamed = tuple(box.streams[RequestId("unlucky")])
            again = submit_frame("unlucky", "m", PROMPT, GREEDY, streamed)
            assert await box.answer(again) == expected(4, PROMPT, GREEDY)
            box.supervisor.send(submit_frame("misspelt", "m", [1, 10**6], GREEDY))
            assert (await box.next(RequestFailed)).error == "the prompt has tokens outside 0..299"
            assert await box.answer(submit_frame("lucky", "m", PROMPT, GREEDY)) == expected(4, PROMPT, GREEDY)
            assert not box.all(NodeDown)

    asyncio.run(scenario())


def test_an_instance_rests_and_is_unloaded_and_cancelled_requests_free_their_kv(tmp_path: Path) -> None:
    long = Sampling(max_tokens=200, temperature=0.0, ignore_eos=True)

    async def scenario() -> None:
        async with running_box() as box:
            box.supervisor.send(load_frame("m", write_checkpoint(tmp_path / "m", seed=5, run_s=0.002)))
            box.supervisor.send(submit_frame("r", "m", PROMPT, long))
            await box.until(lambda: len(box.streams.get(RequestId("r"), ())) >= 3)
            box.supervisor.send(CancelRequest(node_id=NODE, request_id=RequestId("r"), because="the caller is gone"))
            box.supervisor.send(RestInstance(node_id=NODE, instance_id=InstanceId("m"), because="it is idle"))
            await box.until(lambda: [one.state for one in box.all(InstanceReported)][-1] is ModelState.WARM)
            rested = box.all(InstanceReported)[-1]
            assert (rested.kv_bytes, rested.kv_used_bytes, rested.held_bytes) == (0, 0, 10_000)
            assert RequestId("r") not in box.finished
            assert await box.answer(submit_frame("again", "m", PROMPT, GREEDY)) == expected(5, PROMPT, GREEDY)
            box.supervisor.send(UnloadInstance(node_id=NODE, instance_id=InstanceId("m"), because="no longer wanted"))
            await box.reached("m", ModelState.COLD)

    asyncio.run(scenario())


def test_a_request_for_a_resting_instance_waits_for_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_box() as box:
            box.supervisor.send(load_frame("m", write_checkpoint(tmp_path / "m", seed=6, load_s=0.3)))
            assert await box.answer(submit_frame("r1", "m", PROMPT, GREEDY)) == expected(6, PROMPT, GREEDY)
            box.supervisor.send(RestInstance(node_id=NODE, instance_id=InstanceId("m"), because="it is idle"))
            assert await box.answer(submit_frame("r2", "m", PROMPT, GREEDY)) == expected(6, PROMPT, GREEDY)

    asyncio.run(scenario())


def test_an_unknown_engine_is_said_and_not_tried_again() -> None:
    async def scenario() -> None:
        box = Box(start_frame(engine="referense"))
        with pytest.raises(
            OperatorError, match=r"node cpu0: no engine is called 'referense'; the nearest .* 'reference'"
        ):
            await box.supervisor.run()
        assert [type(one) for one in box.heard] == [NodeDown]
        assert box.supervisor.restarts == 0

    asyncio.run(scenario())


def test_a_worker_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    async def scenario() -> None:
        box = Box(start_frame())
        box.supervisor._policy = type(box.supervisor._policy)(stop_timeout_s=0.1)
        task = asyncio.create_task(box.supervisor.run())
        await box.next(NodeUp)
        box.supervisor.send(load_frame("m", write_checkpoint(tmp_path / "m", seed=1, run_s=30)))
        box.supervisor.send(submit_frame("r", "m", PROMPT, GREEDY))
        await box.reached("m", ModelState.WARM)
        await asyncio.sleep(0.2)
        pid = box.supervisor.pid
        await box.supervisor.stop()
        await task
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    asyncio.run(scenario())
