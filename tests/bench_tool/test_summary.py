"""Figures, against runs small enough to count by hand."""

import io
from typing import Any

import pytest
from rich.console import Console

from llmhostd.bench.records import Outcome, Record
from llmhostd.bench.report import print_report, sparkline
from llmhostd.bench.schedule import PlannedRequest
from llmhostd.bench.summary import summarize
from llmhostd.domain.model import Slo

SLO = Slo(ttft_s=1.0, tpot_s=0.1)


def record(due_s: float, times: tuple[float, ...] = (), outcome: Outcome = Outcome.COMPLETED, **more: Any) -> Record:
    planned = PlannedRequest(due_s=due_s, model="m", input_tokens=10, output_tokens=3)
    settings = {"sent_s": due_s + 0.001, "end_s": times[-1] if times else due_s, "status": 200, **more}
    return Record(planned=planned, outcome=outcome, token_times_s=times, **settings)


RUN = [
    record(2.0, (2.5, 2.55, 2.6)),  # met: TTFT 0.5, TPOT 0.05
    record(3.0, (4.5, 4.51, 4.52)),  # TTFT 1.5: late
    record(4.0, (4.1, 4.2, 4.5)),  # TPOT 0.2: slow
    record(5.0, (5.2,)),  # met, one token: no TPOT
    record(6.0, outcome=Outcome.REFUSED, status=429, end_s=6.02),
    record(7.0, (7.1, 7.2), outcome=Outcome.LOST),
    record(8.0, outcome=Outcome.ERROR, status=None, end_s=12.0),
]


def test_promises_are_counted() -> None:
    summary = summarize(RUN, SLO)
    assert (summary.requests, summary.completed, summary.refused, summary.errors, summary.lost) == (7, 4, 1, 1, 1)
    assert (summary.met, summary.met_ttft, summary.met_tpot) == (2, 3, 3)
    assert summary.attainment == pytest.approx(2 / 7)
    assert summary.attainment_of_served == pytest.approx(2 / 4)


def test_goodput_counts_only_what_met_its_promise() -> None:
    summary = summarize(RUN, SLO)
    assert summary.duration_s == pytest.approx(10.0)
    assert summary.goodput_requests_per_s == pytest.approx(0.2)
    assert summary.goodput_tokens_per_s == pytest.approx(0.4)
    assert summary.throughput_tokens_per_s == pytest.approx(1.0)


def test_distributions() -> None:
    summary = summarize(RUN, SLO)
    assert summary.ttft and summary.tpot and summary.time_to_refusal and summary.longest_gap and summary.send_lag
    assert (summary.ttft.count, summary.ttft.max) == (4, pytest.approx(1.5))
    assert summary.ttft.p50 == pytest.approx(0.35)
    assert (summary.tpot.count, summary.tpot.p50) == (3, pytest.approx(0.05))
    assert summary.longest_gap.max == pytest.approx(0.3)
    assert summary.time_to_refusal.max == pytest.approx(0.02)
    assert summary.send_lag.max == pytest.approx(0.001)


def test_a_run_of_nothing() -> None:
    summary = summarize([], SLO)
    assert (summary.attainment, summary.goodput_requests_per_s, summary.ttft) == (0.0, 0.0, None)
    assert "no requests" in text_of([])


def text_of(records: list[Record]) -> str:
    console = Console(file=io.StringIO(), width=160)
    print_report(console, summarize(records, SLO), records)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_report_says_what_counts() -> None:
    text = text_of(RUN)
    assert "28.6% of 7 requests met TTFT <= 1 s and TPOT <= 100 ms; refused, failed and lost ones count" in text
    assert "time to refusal" in text
    assert "lagged" not in text


def test_a_generator_that_lags_admits_it() -> None:
    assert "lagged (200 ms at p99)" in text_of([record(1.0, (1.5, 1.6), sent_s=1.2)])


def test_sparklines() -> None:
    assert sparkline([0, 1, 4, 8]) == " ▁▄█"
    assert sparkline([0, 0]) == "  "
