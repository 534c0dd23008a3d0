"""The chunk is the largest that fits; checked by trying all."""

from hypothesis import given
from hypothesis import strategies as st

from llmhostd.compute.chunked_prefill import ChunkPolicy, largest_chunk, least_chunk


def tried_one_by_one(seconds_of, within_s, pending, past, budget, policy, block):
    """Every length that may be cut: to the end, or to a block's end and not below the least chunk."""
    least = least_chunk(pending=pending, past=past, policy=policy, block_tokens=block)
    fitting = [
        chunk
        for chunk in range(least, min(pending, budget) + 1)
        if (chunk == pending or (past + chunk) % (policy.align_tokens or block) == 0) and seconds_of(chunk) <= within_s
    ]
    return max(fitting, default=0)


@given(
    st.integers(1, 1200), st.integers(0, 300), st.integers(0, 600), st.floats(-0.1, 1.0), st.floats(0, 0.01),
    st.sampled_from([0, 1, 16, 32]), st.sampled_from([1, 8, 16, 32]), st.integers(1, 100),
)  # fmt: skip
def test_finds_the_largest(pending, past, budget, within_s, token_s, align, block, least):
    policy = ChunkPolicy(min_chunk_tokens=least, align_tokens=align)

    def seconds_of(chunk):
        return 0.01 + chunk * token_s

    found = largest_chunk(
        seconds_of, within_s, pending=pending, past=past, budget=budget, policy=policy, block_tokens=block
    )
    assert found == tried_one_by_one(seconds_of, within_s, pending, past, budget, policy, block)


def test_asks_few_times():
    asked = []

    def seconds_of(chunk):
        asked.append(chunk)
        return chunk * 1e-3

    policy = ChunkPolicy(max_chunk_tokens=4096)
    found = largest_chunk(seconds_of, 0.5, pending=4000, past=0, budget=4096, policy=policy, block_tokens=32)
    assert found == 480
    assert len(asked) <= 9


@given(st.integers(1, 1200), st.integers(0, 300), st.sampled_from([8, 16, 32]))
def test_the_least_chunk_ends_at_a_block_of_the_engine_or_at_the_end(pending, past, block):
    policy = ChunkPolicy()
    least = least_chunk(pending=pending, past=past, policy=policy, block_tokens=block)
    assert 1 <= least <= pending
    assert least == pending or (least >= policy.min_chunk_tokens and (past + least) % block == 0)
