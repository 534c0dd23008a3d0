"""Do the invariants notice when something is wrong?"""

import pytest
from boxes import Box, node

from llmhostd.host.invariants import BrokenInvariantError, check, check_counts
from llmhostd.memory.ledger import Purpose


def busy_box():
    box = Box(node("cpu0"), node("cpu1"))
    box.load()
    box.ask()
    return box, box.mind.fleet


def lose_request(fleet):
    next(iter(fleet.instances.values())).load.requests.clear()


def double_request(fleet):
    fleet.waiting.add(fleet.requests["req-1"])


def steal_bytes(fleet):
    fleet.nodes["cpu0"].held.set("ghost", Purpose.KV, 7)


def forget_promise(fleet):
    fleet.nodes["cpu0"].promised.release("wren@cpu0#0")


def compute_too_much(fleet):
    fleet.requests["req-1"].load.computed_tokens = 1000


def lose_instance(fleet):
    fleet.nodes["cpu0"].load.instances.clear()


def die_quietly(fleet):
    fleet.nodes["cpu0"].up = False


@pytest.mark.parametrize(
    ("sabotage", "why"),
    [
        (lose_request, "1 live requests, but 0 placed and 0 queued"),
        (double_request, "req-1 is in 2 places"),
        (steal_bytes, "bytes are owned by nobody"),
        (forget_promise, "bytes and was promised 0"),
        (compute_too_much, "req-1 has 1000 of 100 context tokens computed"),
        (lose_instance, "its mirror is not its instances"),
        (die_quietly, "cpu0 is down and has instances"),
    ],
)
def test_a_contradiction_is_named(sabotage, why):
    box, fleet = busy_box()
    check(box.mind)
    sabotage(fleet)
    with pytest.raises(BrokenInvariantError, match=why):
        check(box.mind)


def test_the_cheap_check_counts_requests():
    box, fleet = busy_box()
    check_counts(box.mind)
    double_request(fleet)
    with pytest.raises(BrokenInvariantError, match="1 live requests, but 1 placed and 1 queued"):
        check_counts(box.mind)
