"""Do streams move that say more than was expected of them, and whose memory is thus more with every token?"""

import pytest
from boxes import Box, node, only, row

from llmhostd.domain import events, reports
from llmhostd.domain.commands import LoadInstance, RecallRequest, StageRequest, SubmitRequest
from llmhostd.domain.model import ModelState


@pytest.fixture
def staged():
    """A box on which a stream far beyond the mean output is on its way to cpu1."""
    box = Box(node("cpu0"), node("cpu1"))
    first = only(SubmitRequest, box.ask(prompt=1000, most=2000))
    box.report(first.instance_id, ModelState.WARM)
    box.iterate(first.instance_id, row("req-1", prefilled=1000, tokens=1))
    while box.mind.fleet.requests["req-1"].load.tokens_out < 500:
        box.iterate(first.instance_id, row("req-1", tokens=1), after=0.02)
    there = only(LoadInstance, box(events.MoveAsked(request_id="req-1", node_id="cpu1"))).instance_id
    box.report(there, ModelState.WARM)
    assert [each for each in box.decided if isinstance(each, StageRequest)][-1].request.context_tokens == 1500
    for _ in range(3):
        box.iterate(first.instance_id, row("req-1", tokens=1), after=0.02)
    return box, first.instance_id, there


def test_they_switch_with_the_next_token(staged):
    box, source, there = staged
    box.iterate(there, row("req-1", prefilled=1499), after=0.001)
    decided = box.iterate(source, row("req-1", tokens=1), after=0.02)
    assert only(RecallRequest, decided).node_id == "cpu0"
    assert only(SubmitRequest, decided).node_id == "cpu1"


def test_they_go_on_where_they_were_going_when_their_source_dies(staged):
    box, source, there = staged
    box.iterate(there, row("req-1", prefilled=512), after=0.001)
    box.iterate(source, row("req-1", tokens=1), after=0.02)
    decided = box(reports.NodeDown(node_id="cpu0", suspect=source, because="killed by signal 11"), 0.01)
    again = only(SubmitRequest, decided)
    assert again.node_id == "cpu1"
    assert "512 of its 1504 tokens are computed there" in again.because
