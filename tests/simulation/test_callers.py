"""When do refused callers ask again?"""

from llmhostd.domain.actions import Refusal, RefuseRequest
from llmhostd.domain.model import Slo
from llmhostd.domain.request import RequestShape, Tier
from llmhostd.simulator.callers import AskAgain, Callers
from llmhostd.simulator.workload import SimulatedRequest


def callers(every_s):
    shape = RequestShape(
        id="r", model="m", prompt_tokens=1, max_tokens=9, tier=Tier.LATENCY_SENSITIVE,
        slo=Slo(ttft_s=1.0, tpot_s=0.1), arrived_s=5.0,
    )  # fmt: skip
    return Callers([SimulatedRequest(shape=shape, output_tokens=3)], AskAgain(every_s))


def refusal(why=Refusal.OVERLOADED):
    return RefuseRequest(request_id="r", refusal=why, retry_after_s=9.0, expected_ttft_s=None, because="full")


def test_they_ask_again_until_their_first_token_would_be_late():
    some = callers(0.25)
    assert some.refused(refusal(), 5.0) == 5.25
    assert some.refused(refusal(), 5.75) == 6.0
    assert (some.waiting, some.observations["r"].refused) == (1, None)
    assert some.refused(refusal(), 6.0) is None
    assert (some.waiting, some.observations["r"].refused) == (0, Refusal.OVERLOADED)
    assert some.refused(refusal(), 6.1) is None, "dropped once"
    assert some.waiting == 0


def test_who_can_never_be_served_goes_at_once():
    assert callers(0.25).refused(refusal(Refusal.TOO_LARGE), 5.0) is None


def test_others_take_no_for_an_answer():
    assert callers(0.0).refused(refusal(), 5.0) is None
