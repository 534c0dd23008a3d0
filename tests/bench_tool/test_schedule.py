"""Schedules are what was asked for, and the same for the same seed."""

import gzip
from itertools import islice, pairwise, repeat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmhostd.bench.prompts import PROBE_WORDS, PromptWriter, TokenScale, scale_from_probes
from llmhostd.bench.schedule import (
    Lengths,
    PlannedRequest,
    Stream,
    gamma_arrivals,
    lengths,
    on_off_arrivals,
    plan,
    zipf_models,
)
from llmhostd.bench.trace import Fallbacks, read_trace
from llmhostd.domain.errors import OperatorError


@pytest.mark.parametrize("cv", [0.5, 1.0, 4.0])
def test_gaps_have_the_rate_and_the_burstiness(cv: float) -> None:
    gaps = np.diff([0.0, *islice(gamma_arrivals(7, rate=5.0, cv=cv), 40_000)])
    assert gaps.mean() == pytest.approx(1 / 5.0, rel=0.1)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


def test_bursts_keep_the_mean_rate_and_are_bursty() -> None:
    times = np.array(list(islice(on_off_arrivals(7, rate=5.0, on_s=2.0, off_s=8.0), 40_000)))
    assert len(times) / times[-1] == pytest.approx(5.0, rel=0.1)
    per_second = np.bincount(times.astype(int))
    assert (per_second == 0).mean() > 0.5  # most seconds are silent
    assert np.percentile(per_second, 99) > 20  # and a burst runs at 25 a second


@given(seed=st.integers(min_value=0, max_value=2**32), on_s=st.floats(0.01, 10), off_s=st.floats(0, 10))
def test_arrivals_never_go_back(seed: int, on_s: float, off_s: float) -> None:
    for arrivals in (gamma_arrivals(seed, 3.0, 2.0), on_off_arrivals(seed, 3.0, on_s, off_s)):
        times = list(islice(arrivals, 50))
        assert all(0 <= before <= after for before, after in pairwise(times))


def test_zipf_shares() -> None:
    drawn = list(islice(zipf_models(1, ["a", "b", "c", "d"], 1.0), 50_000))
    total = 1 + 1 / 2 + 1 / 3 + 1 / 4
    for rank, name in enumerate("abcd", start=1):
        assert drawn.count(name) / len(drawn) == pytest.approx(1 / rank / total, rel=0.05)


def make_plan(seed: int, last: int = 20) -> list[PlannedRequest]:
    return plan(
        gamma_arrivals(seed, 4.0, 1.0),
        zipf_models(seed, ["a", "b"], 1.0),
        lengths(seed, Stream.INPUTS, Lengths(first=10, last=last)),
        lengths(seed, Stream.OUTPUTS, Lengths(first=1, last=1)),
        duration_s=30.0,
        most=100,
    )


def test_a_seed_is_a_schedule_and_lengths_do_not_move_arrivals() -> None:
    assert make_plan(3) == make_plan(3) != make_plan(4)
    moved = make_plan(3, last=500)
    assert [(one.due_s, one.model) for one in moved] == [(one.due_s, one.model) for one in make_plan(3)]
    assert max(one.input_tokens for one in moved) > 20
    assert len(moved) == 100
    assert all(one.due_s < 30.0 for one in moved)


TRACE = "arrival_s,model_id,input_tokens,output_tokens\n3.5,1,100,7\n0.5,0,50,9\n9.0,5,10,1\n1.0,named,20,\n"


def fallbacks() -> Fallbacks:
    return Fallbacks(repeat("drawn"), repeat(64), repeat(32))


def brief(planned: list[PlannedRequest]) -> list[tuple[float, str, int, int]]:
    return [(one.due_s, one.model, one.input_tokens, one.output_tokens) for one in planned]


def test_a_trace_is_sorted_cut_and_sped_up(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(TRACE.encode()))
    assert brief(read_trace(path, ["a", "b"], fallbacks(), start_s=0.5, duration_s=8.0, speed=2.0)) == [
        (0.0, "a", 50, 9),
        (0.25, "named", 20, 32),
        (1.5, "b", 100, 7),
    ]


def test_columns_that_a_trace_lacks_are_drawn(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text("arrival_s\n0.25\n")
    assert brief(read_trace(path, ["a"], fallbacks())) == [(0.25, "drawn", 64, 32)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("time,model\n1,a\n", "has no column arrival_s; its columns are: time, model"),
        ("", "its columns are: none"),
        ("arrival_s,input_tokens\n1.0,5\nsoon,5\n", "line 3: arrival_s is 'soon', not a number"),
    ],
)
def test_a_trace_that_is_none_names_the_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(OperatorError, match=words):
        read_trace(path, ["a"], fallbacks())


@pytest.mark.parametrize("name", ["absent.csv", "broken.csv.gz"])
def test_a_trace_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "broken.csv.gz").write_bytes(gzip.compress(TRACE.encode())[:30])
    with pytest.raises(OperatorError, match=f"{name} cannot be read"):
        read_trace(tmp_path / name, ["a"], fallbacks())


@given(base=st.integers(0, 60), slope=st.floats(0.8, 4.0), tokens=st.integers(100, 4000))
def test_a_prompt_has_the_tokens_that_were_asked_for(base: int, slope: float, tokens: int) -> None:
    scale = scale_from_probes([round(base + slope * words) for words in PROBE_WORDS])
    made = base + slope * len(PromptWriter(5).write(scale.words(tokens)).split())
    assert made == pytest.approx(tokens, abs=slope + 0.02 * tokens)


def test_a_server_that_counts_nonsense() -> None:
    with pytest.raises(OperatorError, match="--tokens-per-word"):
        scale_from_probes([40, 40])


def test_prompts_share_what_they_should() -> None:
    writer = PromptWriter(1, shared=20)
    one, two = writer.write(50).split(), writer.write(50).split()
    assert one[:20] == two[:20]
    assert one[20:] != two[20:]
    assert len(writer.write(8).split()) == 8
    assert TokenScale(base_tokens=100, tokens_per_word=1.0).words(3) == 1
