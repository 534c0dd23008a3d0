"""Which models and requests does an experiment have?"""

import pytest
from experiment_files import write_trace
from hypothesis import given
from hypothesis import strategies as st

from llmhostd.domain.errors import OperatorError
from llmhostd.simulator.assumptions import GIB, KIB, Assumptions
from llmhostd.simulator.population import read_population, shape_of, stratum

USUAL = Assumptions()


def test_the_papers_sets_of_models_are_whole_strata():
    everybody = list(range(128))
    assert stratum(everybody, 32) == [n for n in everybody if n % 8 < 2]
    assert stratum(everybody, 64) == [n for n in everybody if n % 8 < 4]
    assert stratum(list(range(64)), 32) == [n for n in range(64) if n % 8 < 4]


@given(st.integers(1, 200), st.data())
def test_as_many_models_as_asked_for_are_chosen_from_all_popularities(there, data):
    models = data.draw(st.integers(1, there))
    chosen = stratum(list(range(there)), models)
    if there % 8 == 0 or models * 8 % there:
        assert len(chosen) == models
    assert chosen == sorted(set(chosen))


def test_promises_are_the_papers(tmp_path):
    trace = write_trace(tmp_path, (0.5, 0, 100, 10), (1.0, 1, 1024, 10), (2.0, 1, 60_000, 10))
    models, requests = read_population(trace, None, [("8b", 1)], USUAL)
    assert [one.shape.slo.ttft_s for one in requests] == [0.5, 2.0, 8.0]
    assert {one.shape.slo.tpot_s for one in requests} == {0.25}
    assert [one.shape.model for one in requests] == ["8b-0", "8b-1", "8b-1"]
    assert [model.name for model in models] == ["8b-0", "8b-1"]


def test_lengths_are_cut_to_the_models_context(tmp_path):
    _, requests = read_population(write_trace(tmp_path, (0, 0, 9000, 10), (1, 0, 4000, 900)), None, [("7b", 1)], USUAL)
    assert [(one.shape.prompt_tokens, one.output_tokens) for one in requests] == [(4095, 1), (4000, 96)]


def test_sizes_come_in_proportion_and_well_mixed(tmp_path):
    trace = write_trace(tmp_path, *((float(n), n, 10, 1) for n in range(14)))
    models, _ = read_population(trace, None, [("3b", 4), ("7b", 2), ("13b", 1)], USUAL)
    sizes = [model.name.partition("-")[0] for model in models]
    assert {size: sizes.count(size) for size in sizes} == {"3b": 8, "7b": 4, "13b": 2}
    assert sizes[:7].count("3b") == sizes[7:].count("3b") == 4


def test_shapes_have_the_published_bytes():
    assert shape_of("13b").weight_bytes == int(24.3 * GIB)
    assert [shape_of(size).kv_bytes_per_token // KIB for size in ("3b", "7b", "8b", "13b")] == [112, 512, 128, 800]
    for size in ("3b", "7b", "8b", "13b"):
        a = shape_of(size).architecture
        assert shape_of(size).kv_bytes_per_token == 2 * 2 * a.layers * a.kv_heads * a.head_dim


@pytest.mark.parametrize(
    ("header", "rows", "why"),
    [
        ("arrival_s,model_id,input_tokens,output_tokens", "", "has no requests"),
        ("arrival_s,model_id,input_tokens", "0,0,5", "does not say output_tokens of every request"),
        ("arrival_s,model_id,input_tokens,output_tokens", "0,0,x,5", "line 2: input_tokens is 'x', not a number"),
    ],
)
def test_a_trace_that_cannot_be_used_is_named(tmp_path, header, rows, why):
    path = tmp_path / "t.csv"
    path.write_text(f"{header}\n{rows}\n")
    with pytest.raises(OperatorError, match=why):
        read_population(path, None, [("7b", 1)], USUAL)


def test_more_models_than_the_trace_has_are_refused(tmp_path):
    with pytest.raises(OperatorError, match="has 1 models, not 2"):
        read_population(write_trace(tmp_path, (0, 0, 1, 1)), 2, [("7b", 1)], USUAL)
