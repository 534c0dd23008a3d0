"""When is the next token due, from the first one on, and after a move?"""

from dataclasses import fields

import pytest
from nodes import instance, node, request

from llmhostd.compute.deadlines import DeadlinePolicy
from llmhostd.compute.workload import RequestLoad


def test_the_time_per_output_token_counts_from_the_first_token():
    one = request("r", arrived=10.0, ttft=2.0, tpot=0.25)
    assert one.deadline_s == pytest.approx(12.0)
    one.said(1, 10.5)
    assert one.deadline_s == pytest.approx(10.75)
    one.said(2, 10.6)
    assert one.deadline_s == pytest.approx(10.5 + 3 * 0.25)
    assert one.headroom_s(11.0) == pytest.approx(0.25)


def test_a_request_moves_with_its_promise():
    one = request("r", arrived=10.0, tpot=0.25)
    one.said(1, 10.5)
    one.said(3, 10.9)
    shape = one.moved_shape()
    elsewhere = RequestLoad(shape, 0, shape.tokens_out)
    assert elsewhere.deadline_s == one.deadline_s
    elsewhere.said(1, 13.0)
    assert elsewhere.deadline_s == pytest.approx(10.5 + 5 * 0.25)
    assert elsewhere.moved_shape().first_token_s == 10.5


def test_phases_of_a_request():
    one = request("r", prompt=1)
    assert (one.pending_tokens, one.decoding) == (1, False)
    one.computed_tokens = 1
    one.said(1, 1.0)
    assert (one.pending_tokens, one.decoding) == (1, True)
    moved = RequestLoad(one.moved_shape(), 0, 1)
    assert (moved.pending_tokens, moved.decoding) == (2, False)


def test_a_copy_can_be_played_with():
    box = node(instance("a", request("r")))
    copy = box.copy()
    copy.instances["a"].requests["r"].said(1, 5.0)
    copy.instances["a"].first_run_s = 9.0
    assert box.instances["a"].requests["r"].tokens_out == 0
    assert box.instances["a"].first_run_s == 0.0


def test_a_copy_knows_all_that_the_original_knows():
    one = request("r", prompt=500, computed=32, arrived=3.0)
    for field in fields(RequestLoad):
        if field.name != "shape":
            now = getattr(one, field.name)
            setattr(
                one, field.name, 7.5 if now is None else DeadlinePolicy(False, 3.0) if now == DeadlinePolicy() else 7
            )
    further = one.further(64)
    assert further.computed_tokens == one.computed_tokens + 64
    further.computed_tokens -= 64
    assert further == one
    assert further is not one
