"""Do followers see every decision in order, the recent ones first, and never hold anybody up?"""

import asyncio

import pytest

from llmhostd.api.service import RefusedError
from llmhostd.daemon.decisions import KEPT, DecisionFeed
from llmhostd.domain.commands import UnloadInstance
from llmhostd.domain.ids import InstanceId, NodeId
from llmhostd.domain.reports import IterationReported


def unload(number: int) -> UnloadInstance:
    return UnloadInstance(
        node_id=NodeId("cpu0"), instance_id=InstanceId(f"m@cpu0#{number}"), because=f"reason {number}"
    )


def iteration(started_s: float, node: str = "cpu0") -> IterationReported:
    return IterationReported(
        node_id=NodeId(node), instance_id=InstanceId("m"), started_s=started_s, duration_s=0.01, predicted_s=0.01,
        rows=(), because="headroom",
    )  # fmt: skip


def test_a_new_follower_gets_what_is_kept_then_what_comes() -> None:
    async def follow() -> list[int]:
        feed = DecisionFeed(1)
        for number in range(KEPT + 5):
            feed.tell(unload(number))
        follower = feed.follow()
        seen = [one.sequence for one in await follower.decisions()]
        waiting = asyncio.ensure_future(follower.decisions())
        await asyncio.sleep(0)
        feed.tell(unload(999))
        return [*seen, *(one.sequence for one in await waiting)]

    assert asyncio.run(follow()) == list(range(6, KEPT + 7))


def test_a_follower_goes_on_where_it_was_unless_the_daemon_is_another() -> None:
    async def resume(before: DecisionFeed, now: DecisionFeed) -> list[int]:
        follower = before.follow()
        third = (await follower.decisions())[2]
        follower.close()
        return [one.sequence for one in await now.follow(follower.event_id(third)).decisions()]

    earlier, later = (DecisionFeed(9) for _ in range(2))
    for number in range(5):
        earlier.tell(unload(number))
        later.tell(unload(number))
    assert asyncio.run(resume(earlier, earlier)) == [4, 5]
    assert asyncio.run(resume(earlier, later)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("after", ["3", "-", "RUN-", "RUN-x", "RUN-" + "9" * 5000, "RUN-²"])
def test_what_is_no_event_of_it_is_no_place_to_go_on_from(after: str) -> None:
    feed = DecisionFeed(1)
    feed.tell(unload(1))
    follower = feed.follow(after.replace("RUN", feed.run))
    assert [one.sequence for one in asyncio.run(follower.decisions())] == [1]


def test_a_decision_tells_what_of_whom_where_and_why() -> None:
    feed = DecisionFeed(0)
    feed.tell(unload(7))
    (told,) = feed.recent
    assert (told.kind, told.subject, told.node_id, told.because) == ("UnloadInstance", "m@cpu0#7", "cpu0", "reason 7")


def test_iterations_are_sampled_per_node() -> None:
    feed = DecisionFeed(0)
    for tick in range(100):
        feed.tell(iteration(tick * 0.01))
        feed.tell(iteration(tick * 0.01, "cpu1"))
    assert 2 * 9 <= len(feed.recent) <= 2 * 10


def test_a_follower_that_never_reads_misses_the_oldest_only() -> None:
    async def follow() -> list[int]:
        feed = DecisionFeed(1)
        follower = feed.follow()
        for number in range(5000):
            feed.tell(unload(number))
        return [one.sequence for one in await follower.decisions()]

    assert asyncio.run(follow()) == list(range(4001, 5001))


def test_too_many_followers_are_refused_and_closing_frees_a_place() -> None:
    feed = DecisionFeed(1)
    follower = feed.follow()
    with pytest.raises(RefusedError, match="1 followers of events already"):
        feed.follow()
    follower.close()
    assert asyncio.run(follower.decisions()) == []
    feed.follow()
