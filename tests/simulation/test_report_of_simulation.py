"""Does a report count what callers saw?"""

import pytest

from llmhostd.domain.actions import Refusal
from llmhostd.domain.model import Slo
from llmhostd.domain.request import FinishReason, RequestShape, Tier
from llmhostd.simulator.report import Effort, Observation, report_on
from llmhostd.simulator.workload import SimulatedRequest

EFFORT = Effort(iterations=0, busy=0.0, loads=0, rests=0, unloads=0, worker_deaths=0, moved=0)


def seen(name, *token_s, arrived=0.0, tier=Tier.LATENCY_SENSITIVE, **more):
    shape = RequestShape(
        id=name, model="m", prompt_tokens=1, max_tokens=9, tier=tier, slo=Slo(ttft_s=1.0, tpot_s=0.1), arrived_s=arrived
    )
    finish = FinishReason.STOP if token_s else None
    asked = SimulatedRequest(shape=shape, output_tokens=len(token_s))
    return Observation(asked, token_s=list(token_s), finish=finish, **more)


def test_promises_are_kept_from_arrival_and_on_average():
    assert seen("a", 1.0, 1.1, 1.2).met
    assert not seen("late", 1.1).met
    assert seen("cold", 1.4, grace_s=0.5).met
    assert not seen("slow", 0.5, 0.6, 0.9).met
    assert seen("uneven", 0.5, 0.51, 0.69).met


def test_an_early_first_token_is_paid_back_by_eq1_alone():
    paid_back = seen("early", 0.1, 0.6, 1.2)
    assert paid_back.met_by_eq1
    assert not paid_back.met
    assert not seen("slow", 0.1, 0.6, 1.21).met_by_eq1
    assert seen("cold", 1.5, 1.65, 1.7, grace_s=0.5).met_by_eq1
    assert not seen("late", 1.1, 1.15, 1.16).met_by_eq1
    assert not seen("refused", refused=Refusal.OVERLOADED).met_by_eq1


def test_a_report_counts_everybody_once():
    report = report_on(
        [
            seen("met", 0.5, 0.6),
            seen("late", 3.0, 3.1, arrived=1.0),
            seen("flex", 9.0, 10.0, tier=Tier.BEST_EFFORT),
            seen("refused", refused=Refusal.OVERLOADED),
            seen("gone", left=True),
            seen("lost"),
        ],
        EFFORT, seed=0, digest="",
    )  # fmt: skip
    assert (report.requests, report.finished, report.left, report.lost) == (6, 3, 1, 1)
    assert report.refused == {"overloaded": 1}
    assert report.attainment == 0.25, "of met, late, refused and lost"
    assert report.attainment_of_served == 0.5
    assert report.duration_s == 10.0
    assert report.goodput_requests_per_s == pytest.approx(0.1)
    assert report.tokens_per_s == pytest.approx(0.6)
    assert report.best_effort_tokens_per_s == pytest.approx(0.2)
    assert (report.ttft.count, report.ttft.max) == (2, 2.0)
