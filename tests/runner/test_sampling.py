"""Sampling against a slow twin that sorts everything, and against the distribution it stands for."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmhostd.domain.errors import CallerError
from llmhostd.domain.request import Sampling
from llmhostd.engines.interface import Floats
from llmhostd.engines.sampling import TokenSampler, draw_tokens, token_logprobs, uniform


def twin_probabilities(logits: Floats, sampling: Sampling, outputs: list[int]) -> np.ndarray:
    """The distribution, one rule after another, by full sorts in double precision."""
    values = logits.astype(np.float64)
    for token, bias in sampling.logit_bias.items():
        values[token] += bias
    for token, count in Counter(outputs).items():
        values[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    if sampling.temperature < 1e-5:
        return (np.arange(len(values)) == values.argmax()).astype(np.float64)
    weights = np.exp((values - values.max()) / sampling.temperature)
    weights[weights < sampling.min_p] = 0
    if 0 < sampling.top_k < len(values):
        weights[weights < np.sort(weights)[-sampling.top_k]] = 0
    order = np.argsort(-weights, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    weights[order[before >= sampling.top_p * weights.sum()]] = 0
    return weights / weights.sum()


def random_logits(seed: int, vocab: int, scale: float) -> Floats:
    return (np.random.default_rng(seed).standard_normal(vocab) * scale).astype(np.float32)


samplings = st.builds(
    Sampling,
    max_tokens=st.just(8),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.99, 1.0]),
    top_k=st.sampled_from([0, 1, 7, 50, 10**6]),
    min_p=st.sampled_from([0.0, 0.01, 0.3]),
    seed=st.integers(-(2**63), 2**63),
    frequency_penalty=st.sampled_from([0.0, 0.7, -0.5]),
    presence_penalty=st.sampled_from([0.0, 1.1]),
    logit_bias=st.dictionaries(st.integers(0, 19), st.floats(-100, 100, width=32), max_size=3),
)


@settings(max_examples=400, deadline=None)
@given(
    sampling=samplings,
    seed=st.integers(0, 1000),
    vocab=st.sampled_from([20, 1500, 5003]),
    scale=st.sampled_from([0.1, 2.0, 12.0]),
    outputs=st.lists(st.integers(0, 19), max_size=6),
)
def test_the_draw_is_the_twins(sampling: Sampling, seed: int, vocab: int, scale: float, outputs: list[int]) -> None:
    logits = random_logits(seed, vocab, scale)
    untouched = logits.copy()
    reached = np.cumsum(twin_probabilities(logits, sampling, outputs))
    chance = uniform(sampling.seed, len(outputs))
    (token,) = draw_tokens(logits[None], [TokenSampler(sampling, vocab, outputs)])
    allowed = {int(np.searchsorted(reached, chance + slip, side="right")) for slip in (-1e-4, 0.0, 1e-4)}
    assert min(allowed) <= token <= max(allowed)
    assert (logits == untouched).all()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=1, temperature=1.0, seed=1),
        Sampling(max_tokens=1, temperature=0.7, top_p=0.8, seed=2),
        Sampling(max_tokens=1, temperature=1.3, top_k=5, min_p=0.02, seed=3),
    ],
)
@pytest.mark.parametrize("vocab", [12, 4000])
def test_many_draws_follow_the_distribution(sampling: Sampling, vocab: int) -> None:
    logits = random_logits(7, vocab, 1.5)
    probabilities = twin_probabilities(logits, sampling, [])
    draws = 4000
    counts = np.zeros(vocab)
    sampler = TokenSampler(sampling, vocab, [])
    for _ in range(draws):
        counts[draw_tokens(logits[None], [sampler])[0]] += 1
    groups = np.array_split(np.argsort(-probabilities), 10)
    expected = np.array([probabilities[group].sum() for group in groups]) * draws
    observed = np.array([counts[group].sum() for group in groups])
    assert (observed[expected == 0] == 0).all()
    some = expected > 0
    chi_square = ((observed[some] - expected[some]) ** 2 / expected[some]).sum()
    assert chi_square < 33  # 9 degrees of freedom: one seed in 10,000 would fail, and these seeds do not


def test_a_request_that_moved_draws_the_same() -> None:
    sampling = Sampling(max_tokens=30, temperature=1.5, seed=42, frequency_penalty=0.5, presence_penalty=0.3)
    rows = [random_logits(step, 300, 2.0) for step in range(30)]
    stayed = TokenSampler(sampling, 300, [])
    tokens = [draw_tokens(row[None], [stayed])[0] for row in rows]
    moved = TokenSampler(sampling, 300, tokens[:13])
    assert [draw_tokens(row[None], [moved])[0] for row in rows[13:]] == tokens[13:]


def test_rows_of_a_batch_do_not_disturb_each_other() -> None:
    kinds = [
        Sampling(max_tokens=1, temperature=0.0),
        Sampling(max_tokens=1, temperature=0.0, logit_bias={3: 100.0}),
        Sampling(max_tokens=1, seed=5, top_p=0.9),
        Sampling(max_tokens=1, seed=6),
    ]
    logits = np.stack([random_logits(row, 500, 3.0) for row in range(4)])
    together = draw_tokens(logits, [TokenSampler(kind, 500, []) for kind in kinds])
    alone = [draw_tokens(logits[i : i + 1], [TokenSampler(kind, 500, [])])[0] for i, kind in enumerate(kinds)]
    assert together == alone
    assert together[0] == logits[0].argmax()
    assert together[1] == 3


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), vocab=st.sampled_from([5, 900]), top=st.integers(0, 20))
def test_logprobs_are_the_log_softmax_of_the_raw_logits(seed: int, vocab: int, top: int) -> None:
    logits = random_logits(seed, vocab, 4.0).round(1)
    exact = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    report = token_logprobs(logits, 3, top)
    assert report.chosen == pytest.approx(exact[3], abs=1e-4)
    order = sorted(range(vocab), key=lambda token: (-logits[token], token))[:top]
    assert [token for token, _ in report.top] == order
    assert [value for _, value in report.top] == pytest.approx([exact[token] for token in order], abs=1e-4)


def test_chance_depends_on_seed_and_index_only_and_is_spread_evenly() -> None:
    numbers = np.array([uniform(seed, index) for seed in range(40) for index in range(250)])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.01
    assert len(set(numbers.tolist())) == len(numbers)
    assert uniform(-1, 3) == uniform(2**64 - 1, 3)
    assert uniform(17, 4) == 0.6980904951641708  # pinned: a stream may outlive an upgrade


def test_a_bias_on_an_unknown_token_and_broken_logits_are_said_clearly() -> None:
    with pytest.raises(CallerError, match=r"logit_bias: token 500 is not in 0\.\.499"):
        TokenSampler(Sampling(max_tokens=1, logit_bias={500: 1.0}), 500, [])
    broken = random_logits(0, 500, 1.0)
    broken[77] = np.nan
    samplers = [TokenSampler(Sampling(max_tokens=1, temperature=0.0), 500, []) for _ in range(3)]
    whole = random_logits(1, 500, 1.0)
    assert draw_tokens(np.stack([whole, broken, whole]), samplers) == [whole.argmax(), None, whole.argmax()]
    assert [one.drawn for one in samplers] == [1, 0, 1]
