"""What does an answer look like to an OpenAI client?"""

from collections.abc import Iterable, Sequence

import msgspec

from llmhostd.api.service import Piece, ShownLogprobs, ShownToken, TokenUsage


class PromptDetails(msgspec.Struct):
    """Of the prompt tokens."""

    cached_tokens: int


class UsageBody(msgspec.Struct):
    """Token counts of a call."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class TopLogprob(msgspec.Struct):
    """One likely token at one position of a chat answer."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    """One position of a chat answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Log-probabilities of a chat answer."""

    content: list[TokenLogprob]


class TextLogprobs(msgspec.Struct):
    """Log-probabilities of a plain completion: one entry of each list per token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class AnswerMessage(msgspec.Struct):
    """The assistant's turn."""

    role: str
    content: str


class ChatChoice(msgspec.Struct):
    """One of n answers."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(msgspec.Struct):
    """Answer of `POST /v1/chat/completions` without streaming."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody


class TextChoice(msgspec.Struct):
    """One of prompts times n continuations."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: str


class TextCompletion(msgspec.Struct):
    """Answer of `POST /v1/completions` without streaming."""

    id: str
    object: str
    created: int
    model: str
    choices: list[TextChoice]
    usage: UsageBody


class ModelCard(msgspec.Struct):
    """One model of `GET /v1/models`."""

    id: str
    object: str
    created: int
    owned_by: str
    parent: str | None = None
    """Of an adapter: its base."""


class ModelList(msgspec.Struct):
    """Answer of `GET /v1/models`."""

    object: str
    data: list[ModelCard]


class Gathered:
    """One choice's pieces, put together."""

    def __init__(self) -> None:
        self.text = ""
        self.logprobs: list[ShownLogprobs] = []
        self.finish = ""

    def add(self, piece: Piece) -> None:
        """Append what came."""
        self.text += piece.text
        self.logprobs.extend(piece.logprobs)
        self.finish = piece.finish or self.finish


def usage_body(usage: TokenUsage) -> UsageBody:
    """Return OpenAI's form of the counts."""
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.output_tokens,
        total_tokens=usage.prompt_tokens + usage.output_tokens,
        prompt_tokens_details=PromptDetails(usage.cached_tokens),
    )


def chat_logprobs(positions: Iterable[ShownLogprobs]) -> ChatLogprobs:
    """Return the chat endpoint's form."""
    return ChatLogprobs([
        TokenLogprob(_text(one.chosen), one.chosen.logprob, list(one.chosen.token),
                     [TopLogprob(_text(top), top.logprob, list(top.token)) for top in one.top])
        for one in positions
    ])  # fmt: skip


def text_logprobs(positions: Sequence[ShownLogprobs], offset: int) -> TextLogprobs:
    """Return the plain endpoint's form; `offset` is where the first token's text begins in the answer."""
    offsets = []
    for one in positions:
        offsets.append(offset)
        offset += len(_text(one.chosen))
    return TextLogprobs(
        tokens=[_text(one.chosen) for one in positions],
        token_logprobs=[one.chosen.logprob for one in positions],
        top_logprobs=[{_text(top): top.logprob for top in one.top} for one in positions],
        text_offset=offsets,
    )


def chat_choices(gathered: Sequence[Gathered], *, logprobs: bool) -> list[ChatChoice]:
    """Return every answer of a chat call."""
    return [
        ChatChoice(index, AnswerMessage("assistant", one.text), chat_logprobs(one.logprobs) if logprobs else None,
                   one.finish)
        for index, one in enumerate(gathered)
    ]  # fmt: skip


def text_choices(gathered: Sequence[Gathered], *, logprobs: bool) -> list[TextChoice]:
    """Return every continuation of a plain call."""
    return [
        TextChoice(index, one.text, text_logprobs(one.logprobs, 0) if logprobs else None, one.finish)
        for index, one in enumerate(gathered)
    ]


def _text(token: ShownToken) -> str:
    return token.token.decode("utf-8", errors="replace")
