"""Padding changes how many tokens are computed, and nothing else."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from llmhostd_openvino.padding import TOKEN_STEP, pad, padded_count

from llmhostd.engines.interface import Iteration

SCRATCH = 99


@given(st.integers(1, 5000))
def test_counts_are_rounded_up_to_few_and_not_far(count: int) -> None:
    padded = padded_count(count)
    assert padded >= count
    assert padded_count(padded) == padded
    assert padded - count < min(TOKEN_STEP, max(count, 2))


def test_there_are_few_counts() -> None:
    assert len({padded_count(count) for count in range(1, 513)}) <= 26


@given(st.lists(st.tuples(st.integers(1, 70), st.integers(0, 40), st.booleans()), min_size=1, max_size=6))
def test_what_was_asked_for_stays_in_front_and_the_rest_names_the_scratch_block(
    parts: list[tuple[int, int, bool]],
) -> None:
    begins = np.cumsum([0, *(tokens for tokens, _, _ in parts)]).astype(np.int32)
    tokens = int(begins[-1])
    given_one = Iteration(
        token_ids=np.arange(tokens, dtype=np.int64),
        positions=np.arange(tokens, dtype=np.int64),
        past_lens=np.array([past for _, past, _ in parts], np.int32),
        subsequence_begins=begins,
        block_indices=np.arange(len(parts), dtype=np.int32),
        block_indices_begins=np.arange(len(parts) + 1, dtype=np.int32),
        sampled_indices=np.array([end - 1 for end, (_, _, s) in zip(begins[1:], parts, strict=True) if s], np.int64),
    )
    padded = pad(given_one, SCRATCH)
    assert len(padded.positions) == len(padded.token_ids) == padded.subsequence_begins[-1] == padded_count(tokens)
    for name in ("token_ids", "positions", "past_lens", "subsequence_begins", "block_indices", "sampled_indices"):
        asked = getattr(given_one, name)
        assert (getattr(padded, name)[: len(asked)] == asked).all(), name
    added = len(padded.past_lens) - len(parts)
    assert added == (padded_count(tokens) > tokens)
    assert list(padded.block_indices[len(parts) :]) == [SCRATCH] * added
    assert len(padded.positions) - tokens <= TOKEN_STEP
