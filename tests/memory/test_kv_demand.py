"""Equation 2, and the watermark's hysteresis."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmhostd.compute.workload import RequestLoad
from llmhostd.domain.ids import ModelName, RequestId
from llmhostd.domain.model import Slo
from llmhostd.domain.request import RequestShape, Tier
from llmhostd.memory.kv_demand import KvDemandPolicy, OutputLengths, demand_blocks, demand_bytes
from llmhostd.memory.kv_watermark import WatermarkPolicy, recommended_blocks, resized_blocks


def load(prompt, out, most=1000):
    shape = RequestShape(
        id=RequestId("r"), model=ModelName("m"), prompt_tokens=prompt, max_tokens=most, tier=Tier.LATENCY_SENSITIVE,
        slo=Slo(ttft_s=2.0, tpot_s=0.2), arrived_s=0.0,
    )  # fmt: skip
    return RequestLoad(shape, 0, out)


def test_equation_2():
    policy = KvDemandPolicy(least_tokens=100)
    running = [load(100, 10), load(200, 90), load(50, 0, most=5)]
    # Who said less than the mean is expected to say the mean, but nobody more than it may.
    assert demand_bytes(running, 10, policy, 40) == 10 * ((100 + 40) + (200 + 90) + (50 + 5))
    assert demand_bytes([], 10, policy, 40) == 10 * 100
    assert demand_bytes(running, 10, policy) == demand_bytes(running, 10, policy, policy.first_mean_output_tokens)


def test_in_blocks_every_last_block_counts_whole():
    policy = KvDemandPolicy(least_tokens=33)
    assert demand_blocks([], 32, policy, 10) == 2
    assert demand_blocks([load(23, 0), load(22, 0), load(65, 0)], 32, policy, 10) == 2 + 1 + 3


def test_the_mean_follows_what_was_said():
    lengths = OutputLengths(KvDemandPolicy(first_mean_output_tokens=64, remembered_outputs=16))
    for _ in range(200):
        lengths.observe(20)
    assert lengths.mean_tokens == pytest.approx(20, abs=0.1)


@given(st.integers(0, 500), st.integers(1, 500), st.sampled_from([0.0, 0.1, 0.25, 1.0]))
def test_grows_early_shrinks_lazily_and_settles(current, demand, watermark):
    policy = WatermarkPolicy(watermark)
    size = resized_blocks(current, demand, policy)
    assert size >= demand
    if size != current:
        assert size == recommended_blocks(demand, policy)
        assert current < demand or current > demand * (1 + watermark) ** 2
    assert resized_blocks(size, demand, policy) == size
