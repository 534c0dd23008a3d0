"""Shortcuts of shadow validation change no verdict."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nodes import LinearEstimator, instance, node, request
from slow_lookahead import accepts

from llmhostd.compute.adapter_turns import AdapterRoom
from llmhostd.compute.chunked_prefill import ChunkPolicy
from llmhostd.compute.deadlines import DeadlinePolicy
from llmhostd.compute.headroom import HeadroomPolicy
from llmhostd.compute.iteration_plan import IterationPolicy, SchedulingPolicy
from llmhostd.compute.shadow_validation import ShadowPolicy, validate

OURS = SchedulingPolicy()
SMALL_BATCHES = SchedulingPolicy(iteration=IterationPolicy(max_batch=3))
WHOLE = 1 << 17
PAPER = SchedulingPolicy(
    deadlines=DeadlinePolicy(from_first_token=False, longest_gap_slo_factor=0.0, late_first_token_slo_factor=0.0),
    headroom=HeadroomPolicy(reserve_s=0.0),
    chunk=ChunkPolicy(min_chunk_tokens=WHOLE, max_chunk_tokens=WHOLE, align_tokens=1),
    iteration=IterationPolicy(mixed=False, first_tokens_early=False),
)
SCHEDULING = {"ours": OURS, "small batches": SMALL_BATCHES, "as published": PAPER}

# Times are multiples of 1/8 s, so that sums of deadlines are exact whatever their order.
waiting = st.tuples(
    st.integers(0, 3), st.integers(1, 1500), st.integers(0, 5), st.integers(1, 12), st.integers(0, 16),
    st.integers(0, 3), st.sampled_from([0.125, 0.25, 0.25, 0.25]), st.booleans(), st.sampled_from(["", *"abcd"]),
)  # fmt: skip
ROOMY = (0, 2)
"""Instances with slots for adapters."""
steps = st.sampled_from([0.005, 0.02, 0.05])


@st.composite
def boxes(draw, scheduling):
    held = [[] for _ in range(4)]
    for k, (where, prompt, out, more, age, since, tpot, flex, adapter) in enumerate(
        draw(st.lists(waiting, max_size=10))
    ):
        one = request(
            f"r{k}",
            prompt,
            out=out,
            max_tokens=out + more,
            arrived=-age / 8,
            tpot=tpot,
            best_effort=flex and k % 3 == 0,
            adapter=adapter if where in ROOMY else "",
        )
        one.deadlines = scheduling.deadlines
        if out:
            one.first_token_s, one.last_token_s = -age / 16, -min(since, age / 2) / 8
        held[where].append(one)
    first_run = draw(st.sampled_from([0.0, 0.0, 0.3]))
    ready = draw(st.sampled_from([0.0, 0.0, 0.5]))
    estimator = LinearEstimator(step_s=draw(steps), token_s=draw(st.sampled_from([0.0002, 0.0006])))
    rooms = [
        AdapterRoom(draw(st.sampled_from([1, 2, 4])), 0.015625, share=draw(st.sampled_from([0.0, 0.125])))
        if k in ROOMY
        else None
        for k in range(4)
    ]
    pairs = enumerate(zip(held, rooms, strict=True))
    instances = [instance(f"i{k}", *some, estimator=estimator, room=room) for k, (some, room) in pairs]
    instances[1].first_run_s = first_run
    instances[draw(st.integers(1, 3))].ready_at_s = ready
    return node(*instances, busy_until=draw(st.sampled_from([0.0, 0.125])))


@pytest.mark.parametrize("kind", SCHEDULING)
@settings(max_examples=250, deadline=None)
@given(st.data())
def test_a_verdict_is_what_stepping_everything_says(kind, data):
    scheduling = SCHEDULING[kind]
    box = data.draw(boxes(scheduling))
    policy = ShadowPolicy(only_added_harm=data.draw(st.booleans()), max_steps=data.draw(st.sampled_from([200, 20])))
    joins = data.draw(st.sampled_from(["i0", "i1"]))
    adapter = data.draw(st.sampled_from(["", "a", "e"])) if joins == "i0" else ""
    prompt, most = data.draw(st.integers(1, 3000)), data.draw(st.integers(1, 20))
    newcomer = request("new", prompt, max_tokens=most, tpot=0.25, adapter=adapter)
    newcomer.deadlines = scheduling.deadlines
    before = box.copy()
    verdict = validate(box, joins, newcomer, 0.0, policy, scheduling)
    accepted, came_s = accepts(before.copy(), joins, newcomer, 0.0, policy, scheduling)
    assert verdict.accepted == accepted, verdict.because
    if accepted:
        assert verdict.expected_ttft_s == pytest.approx(came_s)
    assert box == before
