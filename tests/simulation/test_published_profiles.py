"""Do published tables become full grids in which no larger load is faster?"""

import json

import pytest
from experiment_files import published, write_profiles
from hypothesis import given
from hypothesis import strategies as st

from llmhostd.compute.estimator import ProfiledEstimator
from llmhostd.domain.errors import OperatorError
from llmhostd.simulator.published_profiles import DecodeRow, PublishedProfile, as_profile, find, read_published


def estimator(**changed):
    one = PublishedProfile(
        model="m", device="cpu", node="n",
        prefill_ms=((1, 50), (1024, 500), (4096, 2400)),
        decode_ms=(
            DecodeRow(context_tokens=512, by_batch=((1, 60), (4, 80), (16, 160))),
            DecodeRow(context_tokens=4096, by_batch=((1, 70), (4, 120))),
        ),
        **changed,
    )  # fmt: skip
    return ProfiledEstimator(as_profile(one, "shape", "n", load_s=1.0, held_bytes=1))


def test_published_points_are_kept():
    one = estimator()
    assert one.iteration_s(prefill=((1024, 0),), decode_batch=0, decode_context=0) == pytest.approx(0.5)
    assert one.iteration_s(prefill=(), decode_batch=16, decode_context=512) == pytest.approx(0.16)
    assert one.iteration_s(prefill=(), decode_batch=4, decode_context=4096) == pytest.approx(0.12)


def test_chunks_add_up_to_the_whole_prompt_and_the_fixed_cost_of_each_further_one():
    one = estimator()
    first = one.iteration_s(prefill=((1024, 0),), decode_batch=0, decode_context=0)
    second = one.iteration_s(prefill=((3072, 1024),), decode_batch=0, decode_context=0)
    assert first + second == pytest.approx(2.4 + 0.05, rel=0.1)


def test_a_missing_corner_lies_on_the_line_of_its_row():
    one = estimator()
    slope_s = (0.12 - 0.07) / 3
    assert one.iteration_s(prefill=(), decode_batch=16, decode_context=4096) == pytest.approx(0.12 + 12 * slope_s)


@given(st.integers(1, 8192), st.integers(0, 8192), st.integers(1, 256), st.integers(1, 8192), st.integers(0, 2000))
def test_no_larger_load_is_faster(chunk, past, batch, context, more):
    one = estimator()

    def prefill_s(chunk, past):
        return one.iteration_s(prefill=((chunk, past),), decode_batch=0, decode_context=0)

    def decode_s(batch, context):
        return one.iteration_s(prefill=(), decode_batch=batch, decode_context=context)

    assert prefill_s(chunk, past) <= prefill_s(chunk + more, past) + 1e-9
    assert prefill_s(chunk, past) <= prefill_s(chunk, past + more) + 1e-9
    assert decode_s(batch, context) <= decode_s(batch + more, context) + 1e-9
    assert decode_s(batch, context) <= decode_s(batch, context + more) + 1e-9


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("prefill_ms", [[1, 50]], "prefill_ms has 1 samples; at least 2 are needed"),
        ("prefill_ms", [[1, 50], [512, 0]], "prefill_ms says 0.0 ms; a time is more than 0"),
        ("prefill_ms", [[512, 50], [1, 70]], r"prefill_ms must begin at 1 or more and increase: \[512, 1\]"),
        ("decode_ms", [], "decode_ms is empty"),
        ("decode_ms", [{"context_tokens": 9, "by_batch": [[1, 2]]}], "decode_ms at 9 tokens has 1 samples"),
        ("prefill_ms", "fast", r"Expected `array`, got `str` - at `\$.profiles\[0\].prefill_ms`"),
        ("sllm_concurrency", "6", r"Expected `int \| null`, got `str` - at `\$.profiles\[0\].sllm_concurrency`"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path, field, value, why):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"profiles": [{**published("llama-2-7b", "cpu"), field: value}]}))
    with pytest.raises(OperatorError, match=f"profiles file .*bad.json.*{why}"):
        read_published(path)


def test_a_missing_pair_says_what_there_is(tmp_path):
    profiles = read_published(write_profiles(tmp_path))
    with pytest.raises(OperatorError, match="no profile of llama-2-7b on h200; it was measured on: a100-80g, xeon"):
        find(profiles, "llama-2-7b", "h200")
    with pytest.raises(OperatorError, match="no profile of llama-9b on a100-80g; models: llama-2-7b"):
        find(profiles, "llama-9b", "a100-80g")
