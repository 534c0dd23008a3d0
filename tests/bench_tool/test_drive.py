"""The load generator against a real HTTP server."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from openai_stand_in import BASE_TOKENS, TOKENS_PER_WORD, StandIn, stand_in

from llmhostd.bench.client import Endpoint, Target, prepare
from llmhostd.bench.drive import drive, probe_scales
from llmhostd.bench.records import Outcome, Record
from llmhostd.bench.schedule import PlannedRequest
from llmhostd.domain.errors import CallerError, OperatorError


@dataclass
class Run:
    server: StandIn
    records: list[Record]


def run(models: Sequence[str], *, tokens: int = 4, every_s: float = 0.0, waiting_for: int = 1, **target: object) -> Run:
    async def play() -> Run:
        async with stand_in() as server:
            server.waiting_for = waiting_for
            aim = Target(url=server.url, **target)  # type: ignore[arg-type]
            planned = [
                PlannedRequest(due_s=index * every_s, model=model, input_tokens=3, output_tokens=tokens)
                for index, model in enumerate(models)
            ]
            return Run(server, await drive(aim, [prepare(aim, one, "one two three") for one in planned]))

    return asyncio.run(play())


def test_tokens_and_counts_are_recorded() -> None:
    (record,) = run(["good"], tokens=5).records
    assert (record.outcome, record.status, record.finish, record.error) == (Outcome.COMPLETED, 200, "length", "")
    assert len(record.token_times_s) == record.tokens_out == 5
    assert record.prompt_tokens == int(BASE_TOKENS + 3 * TOKENS_PER_WORD)
    assert 0 <= record.lag_s < record.ttft_s < record.e2e_s
    # The server sleeps at least 1 ms between events; that cannot be measured shorter.
    assert record.tpot_s > 0.0009
    assert record.longest_gap_s >= record.tpot_s


def test_a_role_without_text_is_not_the_first_token() -> None:
    (record,) = run(["good"], tokens=1).records
    assert (len(record.token_times_s), record.tpot_s) == (1, 0.0)


def test_tokens_are_counted_by_the_server_where_events_hold_several() -> None:
    (record,) = run(["paired"], tokens=8).records
    assert (len(record.token_times_s), record.tokens_out) == (4, 8)
    assert record.tpot_s == (record.token_times_s[-1] - record.token_times_s[0]) / 7


def test_a_body_that_ends_with_the_connection() -> None:
    (record,) = run(["unframed"], endpoint=Endpoint.COMPLETIONS).records
    assert (record.outcome, record.tokens_out) == (Outcome.COMPLETED, 4)


@pytest.mark.parametrize(
    ("model", "outcome", "status", "words"),
    [
        ("full", Outcome.REFUSED, 429, "busy"),
        ("broken", Outcome.ERROR, 500, "oops"),
        ("cut", Outcome.LOST, 200, "in the middle of its answer"),
        ("failing", Outcome.LOST, 200, "worker gone"),
        ("silent", Outcome.LOST, None, "no end after 2 s"),
    ],
)
def test_what_goes_wrong_is_told_apart(model: str, outcome: Outcome, status: int | None, words: str) -> None:
    bad, good = run([model, "good"], timeout_s=2.0 if model == "silent" else 20.0).records
    assert (bad.outcome, bad.status) == (outcome, status)
    assert words in bad.error
    assert good.outcome is Outcome.COMPLETED


def test_a_refusal_says_when_to_come_back() -> None:
    (record,) = run(["full"]).records
    assert record.retry_after_s == 0.01


def test_nobody_listens() -> None:
    target = Target(url="http://127.0.0.1:9")
    request = prepare(target, PlannedRequest(due_s=0.0, model="m", input_tokens=1, output_tokens=1), "hi")
    (record,) = asyncio.run(drive(target, [request]))
    assert (record.outcome, record.status) == (Outcome.ERROR, None)
    assert "127.0.0.1" in record.error


def test_open_loop_sends_whatever_became_of_earlier_requests() -> None:
    records = run(["together"] * 8, every_s=0.002, waiting_for=8).records
    assert [one.outcome for one in records] == [Outcome.COMPLETED] * 8
    assert min(one.token_times_s[0] for one in records) > max(one.sent_s for one in records)


def test_nothing_is_sent_before_it_is_due_and_records_come_in_order() -> None:
    records = run(["good"] * 5, every_s=0.01).records
    assert [one.planned.due_s for one in records] == pytest.approx([0.0, 0.01, 0.02, 0.03, 0.04])
    assert all(one.lag_s >= 0 for one in records)


def test_the_request_on_the_wire() -> None:
    server = run(["good"], ignore_eos=True, api_key="s3", extra={"service_tier": "flex", "max_tokens": 2}).server
    assert server.requests[0] == {
        "model": "good",
        "max_tokens": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "one two three"}],
        "ignore_eos": True,
        "service_tier": "flex",
    }
    assert server.headers[0].startswith("POST /v1/chat/completions HTTP/1.1\r\n")
    assert "\r\nAuthorization: Bearer s3\r\n" in server.headers[0]
    assert json.dumps(server.requests[0])


@pytest.mark.parametrize(
    ("url", "path"),
    [("http://h:1", "/v1"), ("h:1", "/v1"), ("https://h/api/v1/", "/api/v1"), ("http://h/x/", "/x/v1")],
)
def test_urls_with_and_without_the_version(url: str, path: str) -> None:
    assert Target(url=url).split().path == path


@pytest.mark.parametrize("url", ["ftp://h", "http://", ""])
def test_no_url(url: str) -> None:
    with pytest.raises(CallerError, match="is no URL like"):
        Target(url=url).split()


def test_probes_find_how_many_words_make_a_prompt() -> None:
    async def play() -> int:
        async with stand_in() as server:
            # `loading` refuses at first: the probe comes back when it is told to.
            scales = await probe_scales(Target(url=server.url), ["good", "loading"], seed=1)
            assert scales["good"] == scales["loading"]
            return scales["good"].words(307)

    assert asyncio.run(play()) == (307 - BASE_TOKENS) / TOKENS_PER_WORD


def test_a_probe_that_cannot_be_answered_says_why() -> None:
    async def play() -> None:
        async with stand_in() as server:
            await probe_scales(Target(url=server.url), ["broken"], seed=1)

    with pytest.raises(OperatorError, match="does not answer for broken: 500 oops"):
        asyncio.run(play())
