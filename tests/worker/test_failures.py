"""Whatever fails in an engine, the node's books say what the engine really holds, and requests are not lost."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from box import NODE, Box, load_frame, running_box, start_frame, submit_frame
from drive import alone
from reference_engine import BLOCK_TOKENS, KV_BYTES_PER_TOKEN, ReferenceInstance, write_checkpoint

from llmhostd.domain.commands import RestInstance, UnloadInstance
from llmhostd.domain.hardware import MemoryClaim, MemoryPool
from llmhostd.domain.ids import InstanceId, RequestId
from llmhostd.domain.model import ModelState
from llmhostd.domain.reports import (
    InstanceReported,
    IterationReported,
    LoadFailed,
    NodeDown,
    NodeMemoryChanged,
    NodeMemoryReported,
    NodeUp,
    RequestFailed,
    RequestReturned,
)
from llmhostd.domain.request import Sampling
from llmhostd.engines.runner import Runner

GREEDY = Sampling(max_tokens=20, temperature=0.0, ignore_eos=True)
PROMPT = list(range(5, 30))
BLOCK = BLOCK_TOKENS * KV_BYTES_PER_TOKEN
RESIDENT = 200_000
"""What the reference engine says of an instance that has run."""
OLD_WARM = ("old", ModelState.WARM)


def expected(prompt: list[int]) -> list[int]:
    runner = Runner(ReferenceInstance(1, {}))
    runner.resize(64)
    return alone(runner, prompt, GREEDY)


async def settled(box: Box, holds: Any) -> NodeMemoryReported:
    """The first report of the node's memory that is as it should be."""
    await box.until(lambda: box.all(NodeMemoryReported) and holds(box.all(NodeMemoryReported)[-1]))
    return box.all(NodeMemoryReported)[-1]


def test_the_books_say_what_the_engine_holds_through_a_life(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_box() as box:
            box.supervisor.send(load_frame("m", write_checkpoint(tmp_path / "m", seed=1)))
            assert await box.answer(submit_frame("r", "m", PROMPT, GREEDY)) == expected(PROMPT)
            report = await settled(box, lambda one: one.used_bytes == RESIDENT)
            held = box.all(InstanceReported)[-1]
            assert report.held_bytes == held.held_bytes + held.kv_bytes
            assert held.kv_bytes % BLOCK == 0 < held.kv_bytes
            assert held.block_tokens == BLOCK_TOKENS
            assert report.budget_bytes == start_frame().spec.memory_bytes
            assert report.scaling_s > 0
            box.supervisor.send(UnloadInstance(node_id=NODE, instance_id=InstanceId("m"), because="no longer wanted"))
            report = await settled(box, lambda one: one.held_bytes == 0)
            assert (report.promised_bytes, report.used_bytes) == (0, 0)

    asyncio.run(scenario())


def test_one_whose_logits_are_no_numbers_fails_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_box() as box:
            box.supervisor.send(load_frame("m", write_checkpoint(tmp_path / "m", seed=1, poison=40, run_s=0.03)))
            await box.reached("m", ModelState.WARM)
            box.supervisor.send(submit_frame("good", "m", PROMPT, GREEDY))
            box.supervisor.send(submit_frame("bad", "m", [*PROMPT, 40], GREEDY))
            returned = await box.next(RequestReturned)
            assert returned.because == "the model computed logits that are not numbers"
            box.supervisor.send(submit_frame("bad", "m", [*PROMPT, 40], GREEDY))
            failed = await box.next(RequestFailed)
            assert (failed.request_id, failed.error) == ("bad", returned.because)
            await box.until(lambda: "good" in box.finished)
            assert box.streams[RequestId("good")] == expected(PROMPT)
            assert [one.request_id for one in (*box.all(RequestReturned), *box.all(RequestFailed))] == ["bad", "bad"]
            batches = [tuple(row.request_id for row in one.rows) for one in box.all(IterationReported)]
            assert sum({"good", "bad"} == set(batch) for batch in batches) >= 2
            assert RequestId("bad") not in box.finished
            await settled(box, lambda one: one.used_bytes == RESIDENT)

    asyncio.run(scenario())


def test_an_iteration_that_fails_again_fails_its_requests_and_frees_what_they_held(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_box() as box:
            checkpoint = write_checkpoint(tmp_path / "m", seed=1, fail_from_run=3)
            box.supervisor.send(load_frame("m", checkpoint))
            box.supervisor.send(submit_frame("r", "m", PROMPT, GREEDY))
            await box.next(RequestReturned)
            box.supervisor.send(submit_frame("r", "m", PROMPT, GREEDY, tuple(box.streams[RequestId("r")])))
            failed = await box.next(RequestFailed)
            assert (failed.request_id, failed.error) == ("r", "the reference engine was asked to fail")
            await settled(box, lambda one: one.used_bytes == RESIDENT)
            assert len(box.all(RequestReturned)) == 1

    asyncio.run(scenario())


def test_an_instance_that_cannot_be_trusted_is_built_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_box() as box:
            checkpoint = write_checkpoint(tmp_path / "m", seed=1, lose_at_run=4, unload_s=0.1)
            box.supervisor.send(load_frame("m#1", checkpoint))
            box.supervisor.send(submit_frame("r", "m#1", PROMPT, GREEDY))
            returned = await box.next(RequestReturned)
            assert returned.because == "the reference engine lost its mind"
            await box.until(lambda: _states(box)[-1] == ("m#1", ModelState.COLD))
            assert box.heard.index(returned) < box.heard.index(box.all(InstanceReported)[-1])
            box.supervisor.send(load_frame("m#2", write_checkpoint(tmp_path / "m", seed=1)))
            streamed = tuple(box.streams[RequestId("r")])
            assert await box.answer(submit_frame("r", "m#2", PROMPT, GREEDY, streamed)) == expected(PROMPT)
            await settled(box, lambda one: one.used_bytes == RESIDENT)

    asyncio.run(scenario())


def test_a_process_that_cannot_be_trusted_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_box() as box:
            box.supervisor.send(load_frame("m", write_checkpoint(tmp_path / "m", seed=1, lose_process_at_run=4)))
            box.supervisor.send(submit_frame("r", "m", PROMPT, GREEDY))
            await box.next(NodeDown)
            await box.next(NodeUp, 2)
            box.supervisor.send(load_frame("m", write_checkpoint(tmp_path / "m", seed=1)))
            streamed = tuple(box.streams[RequestId("r")])
            assert await box.answer(submit_frame("r", "m", PROMPT, GREEDY, streamed)) == expected(PROMPT)

    asyncio.run(scenario())


def test_a_pool_that_cannot_grow_returns_who_needs_it_and_serves_the_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_box() as box:
            box.supervisor.send(load_frame("m", write_checkpoint(tmp_path / "m", seed=1, most_blocks=90)))
            assert await box.answer(submit_frame("small", "m", PROMPT, GREEDY)) == expected(PROMPT)
            for place in range(4):
                long = list(range(5 + place, 235 + place))
                box.supervisor.send(submit_frame(f"r{place}", "m", long, Sampling(max_tokens=5, ignore_eos=True)))
            await box.next(RequestReturned)
            everyone = {RequestId(f"r{place}") for place in range(4)}
            await box.until(lambda: everyone <= box.finished | {one.request_id for one in box.all(RequestReturned)})
            assert len(everyone & box.finished) >= 2
            report = await settled(box, lambda one: one.used_bytes == RESIDENT)
            assert report.held_bytes <= RESIDENT + 90 * BLOCK

    asyncio.run(scenario())


def test_a_pool_that_does_not_shrink_counts_as_it_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        memory = RESIDENT * 2 + 200 * BLOCK + (1 << 20)
        async with running_box(start_frame(memory=memory)) as box:
            box.supervisor.send(load_frame("m", write_checkpoint(tmp_path / "m", seed=1, fail_at_shrink=True)))
            for place in range(5):
                long = list(range(5 + place, 205 + place))
                box.supervisor.send(submit_frame(f"r{place}", "m", long, Sampling(max_tokens=5, ignore_eos=True)))
            await box.until(lambda: len(box.finished) == 5)
            await box.until(lambda: "could not be resized" in box.all(InstanceReported)[-1].because)
            pool = box.all(InstanceReported)[-1].kv_bytes
            report = await settled(box, lambda one: one.used_bytes == RESIDENT)
            assert report.held_bytes == RESIDENT + pool
            assert await box.answer(submit_frame("again", "m", PROMPT, GREEDY)) == expected(PROMPT)

    asyncio.run(scenario())


def test_kv_that_cannot_be_trusted_costs_the_instance_and_not_the_node(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_box() as box:
            broken = write_checkpoint(tmp_path / "b", seed=1, break_at_shrink=True, unload_s=0.2)
            box.supervisor.send(load_frame("b", broken))
            for place in range(5):
                long = list(range(5 + place, 205 + place))
                box.supervisor.send(submit_frame(f"r{place}", "b", long, Sampling(max_tokens=5, ignore_eos=True)))
            failed = await box.next(LoadFailed)
            assert "in the middle of it" in failed.error
            assert (await settled(box, lambda one: one.promised_bytes == 0)).held_bytes > RESIDENT
            await settled(box, lambda one: one.held_bytes == 0)
            box.supervisor.send(load_frame("m", write_checkpoint(tmp_path / "m", seed=1)))
            assert await box.answer(submit_frame("other", "m", PROMPT, GREEDY)) == expected(PROMPT)

    asyncio.run(scenario())


def test_what_an_unload_did_not_give_back_is_taken_off_the_budget(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_box() as box:
            box.supervisor.send(load_frame("m", write_checkpoint(tmp_path / "m", seed=1, keep_at_unload=True)))
            assert await box.answer(submit_frame("r", "m", PROMPT, GREEDY)) == expected(PROMPT)
            box.supervisor.send(UnloadInstance(node_id=NODE, instance_id=InstanceId("m"), because="no longer wanted"))
            changed = await box.next(NodeMemoryChanged)
            kept = RESIDENT + box.all(InstanceReported)[-2].kv_bytes
            assert changed.memory_bytes == start_frame().spec.memory_bytes - kept
            assert changed.because.startswith("m could not be destroyed and keeps")
            report = await settled(box, lambda one: one.held_bytes == 0)
            assert report.budget_bytes == changed.memory_bytes

    asyncio.run(scenario())


def test_the_budget_follows_the_machine(tmp_path: Path) -> None:
    start = start_frame(memory=1 << 50)
    pool = MemoryPool(claims=(MemoryClaim(weight=1),), mine=0)
    start = msgspec.structs.replace(start, spec=msgspec.structs.replace(start.spec, memory_pools=(pool,)))

    async def scenario() -> None:
        async with running_box(start) as box:
            changed = await box.next(NodeMemoryChanged)
            assert 0 < changed.memory_bytes < 1 << 50
            assert "this node's" in changed.because
            await settled(box, lambda one: one.budget_bytes == box.all(NodeMemoryChanged)[-1].memory_bytes)

    asyncio.run(scenario())


def test_a_rest_gives_its_memory_back_at_once_and_lets_others_use_the_builder_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_box() as box:
            box.supervisor.send(load_frame("old", write_checkpoint(tmp_path / "old", seed=1)))
            assert await box.answer(submit_frame("r1", "old", PROMPT, GREEDY)) == expected(PROMPT)
            box.supervisor.send(load_frame("slow", write_checkpoint(tmp_path / "slow", seed=1, load_s=0.5)))
            box.supervisor.send(RestInstance(node_id=NODE, instance_id=InstanceId("old"), because="others need it"))
            box.supervisor.send(load_frame("new", write_checkpoint(tmp_path / "new", seed=1)))
            box.supervisor.send(submit_frame("r2", "new", PROMPT, GREEDY))
            await box.until(lambda: RequestId("r2") in box.finished)
            await box.until(lambda: _last(_states(box), OLD_WARM) > _states(box).index(("old", ModelState.LOADING)))
            states = _states(box)
            emptied, built_again = states.index(("old", ModelState.LOADING)), _last(states, OLD_WARM)
            assert (box.all(InstanceReported)[emptied].held_bytes, box.all(InstanceReported)[emptied].kv_bytes) == (
                0,
                0,
            )
            assert emptied < states.index(("slow", ModelState.WARM)) < states.index(("new", ModelState.WARM))
            assert states.index(("new", ModelState.WARM)) < built_again

    asyncio.run(scenario())


def test_a_load_for_which_there_is_no_memory_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_box(start_frame(memory=1000)) as box:
            box.supervisor.send(load_frame("m", write_checkpoint(tmp_path / "m", seed=1)))
            error = (await box.next(LoadFailed)).error
            assert error == "the node lacks 0.1 MB to load it, and nothing on it will give any back"

    asyncio.run(scenario())


def _states(box: Box) -> list[tuple[str, ModelState]]:
    return [(one.instance_id, one.state) for one in box.all(InstanceReported)]


def _last(states: list[tuple[str, ModelState]], one: tuple[str, ModelState]) -> int:
    return len(states) - 1 - states[::-1].index(one)
