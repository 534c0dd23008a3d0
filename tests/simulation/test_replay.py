"""What does a simulated box do with a load, and does it do the same again?"""

import gzip
import os
import subprocess
import sys

import pytest

from llmhostd.domain.errors import OperatorError
from llmhostd.simulator.faults import Faults
from llmhostd.simulator.replay import simulate
from llmhostd.simulator.report import as_text

LIGHT = {"models": 8, "rate": 3.0, "requests": 200, "input_tokens": (20, 260), "output_tokens": (5, 60)}
EVERYTHING = """
from llmhostd.simulator.faults import Faults
from llmhostd.simulator.replay import simulate
faults = Faults(death_every_s=8.0, failed_load_share=0.05, slow_iteration_share=0.02, leaver_share=0.1)
report = simulate(models=8, nodes=2, requests=120, rate=6.0, noise=0.2, best_effort_share=0.3, memory_bytes=1 << 30,
                  burst=(2.0, 4.0), faults=faults, seed=3)
print(report.digest, report.finished)
"""


def test_a_light_load_is_served_in_time():
    report = simulate(**LIGHT)
    assert (report.requests, report.finished, report.lost, report.refused) == (200, 200, 0, {})
    assert report.attainment == 1.0
    assert report.effort.loads == 8
    assert report.ttft.p50 < 0.2
    assert report.tpot.max < 0.2


def test_the_same_seed_gives_the_same_decisions_and_another_one_does_not():
    first, again, other = simulate(**LIGHT, seed=1), simulate(**LIGHT, seed=1), simulate(**LIGHT, seed=2)
    assert first == again
    assert first.digest != other.digest


def test_noise_changes_decisions_but_loses_nobody():
    calm, noisy = simulate(**LIGHT), simulate(**LIGHT, noise=0.3)
    assert calm.digest != noisy.digest
    assert noisy.lost == 0


def test_decisions_do_not_depend_on_the_hash_seed():
    said = [
        subprocess.run(
            [sys.executable, "-c", EVERYTHING],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True, timeout=120,
        ).stdout
        for seed in ("0", "1", "4242")
    ]  # fmt: skip
    assert said[0] == said[1] == said[2]
    assert len(said[0].split()[0]) == 16


def test_an_overloaded_box_refuses_at_once_and_serves_the_others_in_time():
    report = simulate(models=4, rate=60.0, requests=300, input_tokens=(200, 400))
    assert report.refused["overloaded"] > 100
    assert report.finished + report.refused["overloaded"] == 300
    assert report.attainment_of_served >= 0.95


def test_best_effort_costs_people_nothing_and_is_all_done():
    alone = simulate(**LIGHT)
    beside = simulate(**LIGHT, best_effort_share=0.4)
    assert beside.finished == beside.requests
    assert beside.attainment == alone.attainment == 1.0
    assert beside.best_effort_tokens_per_s > 0.0


def test_models_that_do_not_fit_together_take_turns():
    report = simulate(models=8, rate=0.5, requests=60, memory_bytes=700 << 20)
    assert report.lost == 0
    assert report.effort.rests > 10, "three of eight fit"
    assert report.attainment_of_served == 1.0


def test_twenty_dead_workers_lose_no_request():
    report = simulate(models=4, rate=4.0, requests=400, faults=Faults(death_every_s=5.0))
    assert report.effort.worker_deaths >= 20
    assert report.effort.moved > 20
    assert report.lost == 0
    assert report.finished + report.refused.get("unavailable", 0) + report.refused.get("overloaded", 0) == 400


def test_a_trace_is_replayed_plain_or_compressed(tmp_path):
    lines = "".join(f"{n * 0.4:.3f},{n % 5},{50 + n},{5 + n % 20}\n" for n in range(40))
    text = "arrival_s,model_id,input_tokens,output_tokens\n" + lines
    (tmp_path / "trace.csv").write_text(text)
    (tmp_path / "trace.csv.gz").write_bytes(gzip.compress(text.encode()))
    plain = simulate(trace=tmp_path / "trace.csv", models=5)
    assert (plain.requests, plain.finished) == (40, 40)
    assert simulate(trace=tmp_path / "trace.csv.gz", models=5) == plain


def test_a_trace_that_is_none_is_an_error_for_the_operator(tmp_path):
    (tmp_path / "trace.csv").write_text("when,what\n1,2\n")
    with pytest.raises(OperatorError, match="no column arrival_s"):
        simulate(trace=tmp_path / "trace.csv")


def test_a_report_reads_well():
    text = as_text(simulate(models=2, rate=2.0, requests=20))
    assert [line.split("  ")[0] for line in text.splitlines()] == [
        "requests", "refused", "lost", "SLO met", "goodput", "best effort", "TTFT", "TPOT", "effort", "digest",
    ]  # fmt: skip
    assert "SLO met      100.00% of all" in text
