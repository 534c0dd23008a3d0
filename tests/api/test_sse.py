"""Are the hand-made chunks exactly what a JSON encoder would make of the whole?"""

import json

from hypothesis import given
from hypothesis import strategies as st

from llmhostd.api.service import Piece, ShownLogprobs, ShownToken, TokenUsage
from llmhostd.api.sse import ChatChunks, Head, TextChunks, coalesced
from llmhostd.domain.request import FinishReason

HEAD = Head("chatcmpl-1", "chat.completion.chunk", 17, 'a "model"')
USAGE = TokenUsage(prompt_tokens=7, cached_tokens=3, output_tokens=5)

logprobs = st.builds(
    lambda token, value: ShownLogprobs(chosen=ShownToken(token=token, logprob=value), top=()),
    st.binary(min_size=1, max_size=4),
    st.floats(-20, 0),
)
texts = st.text(st.characters(codec="utf-8"), max_size=12)
pieces = st.lists(
    st.builds(Piece, st.integers(0, 2), texts, st.sampled_from([None, *FinishReason]), st.lists(logprobs, max_size=2)),
    max_size=8,
)


def events(data: bytes) -> list[dict[str, object]]:
    assert data == b"" or data.endswith(b"\n\n")
    return [json.loads(line.removeprefix(b"data: ")) for line in data.split(b"\n\n") if line]


@given(pieces, st.booleans(), st.booleans())
def test_chat_chunks_say_what_the_pieces_say(some: list[Piece], wants_logprobs: bool, include_usage: bool) -> None:
    expected: dict[int, list[object]] = {index: ["", None, 0] for index in range(3)}
    for piece in some:
        expected[piece.choice][0] += piece.text  # type: ignore[operator]
        expected[piece.choice][1] = piece.finish
        expected[piece.choice][2] += len(piece.logprobs) if wants_logprobs else 0  # type: ignore[operator]
    shown: dict[int, list[object]] = {index: ["", None, 0] for index in range(3)}
    writer = ChatChunks(HEAD, 3, logprobs=wants_logprobs, include_usage=include_usage)
    for event in events(writer.chunks(some)):
        assert {key: event[key] for key in ("id", "object", "created", "model")} == {
            "id": HEAD.id, "object": HEAD.object, "created": 17, "model": HEAD.model,
        }  # fmt: skip
        assert ("usage" in event) == include_usage
        (choice,) = event["choices"]  # type: ignore[misc]
        shown[choice["index"]][0] += choice["delta"].get("content", "")
        shown[choice["index"]][1] = choice["finish_reason"]
        shown[choice["index"]][2] += len((choice["logprobs"] or {}).get("content", []))
    assert shown == expected


@given(pieces)
def test_text_chunks_say_what_the_pieces_say_and_where_each_token_begins(some: list[Piece]) -> None:
    shown, offsets = dict.fromkeys(range(3), ""), {index: [] for index in range(3)}
    writer = TextChunks(HEAD, 3, logprobs=True, include_usage=False)
    for part in (some[:4], some[4:]):
        for event in events(writer.chunks(part)):
            (choice,) = event["choices"]  # type: ignore[misc]
            shown[choice["index"]] += choice["text"]
            offsets[choice["index"]] += (choice["logprobs"] or {}).get("text_offset", [])
    for index in range(3):
        assert shown[index] == "".join(piece.text for piece in some if piece.choice == index)
        tokens = [one.chosen.token.decode(errors="replace") for piece in some if piece.choice == index
                  for one in piece.logprobs]  # fmt: skip
        assert offsets[index] == [len("".join(tokens[:place])) for place in range(len(tokens))]


def test_opening_and_closing_frame_the_stream() -> None:
    writer = ChatChunks(HEAD, 2, logprobs=False, include_usage=True)
    first, second = events(writer.opening())
    assert [one["choices"][0]["index"] for one in (first, second)] == [0, 1]  # type: ignore[index]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}  # type: ignore[index]
    closing = writer.closing(USAGE)
    assert closing.endswith(b"data: [DONE]\n\n")
    (last,) = events(closing.removesuffix(b"data: [DONE]\n\n"))
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12, "prompt_tokens_details": {"cached_tokens": 3},
    }  # fmt: skip
    assert ChatChunks(HEAD, 1, logprobs=False, include_usage=False).closing(USAGE) == b"data: [DONE]\n\n"


@given(pieces)
def test_coalescing_keeps_every_choice_in_order(some: list[Piece]) -> None:
    joined = coalesced(some)
    assert len({one.choice for one in joined}) == len(joined)
    for one in joined:
        own = [piece for piece in some if piece.choice == one.choice]
        assert one.text == "".join(piece.text for piece in own)
        assert one.finish == own[-1].finish
        assert list(one.logprobs) == [position for piece in own for position in piece.logprobs]
