"""What may a caller of the OpenAI endpoints send?

Every field that OpenAI's clients know is listed: those that are honoured with their limits, those that change nothing
here, and those that cannot be honoured, which are refused by name unless they ask for nothing.
"""

from typing import Annotated, Any, Literal

import msgspec

Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
TopP = Annotated[float, msgspec.Meta(gt=0, le=1)]
TopK = Annotated[int, msgspec.Meta(ge=-1, le=1_000_000)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Bias = Annotated[float, msgspec.Meta(ge=-100, le=100)]
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Choices = Annotated[int, msgspec.Meta(ge=1, le=4)]
TopLogprobs = Annotated[int, msgspec.Meta(ge=0, le=20)]
StopText = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
Stops = Annotated[list[StopText], msgspec.Meta(max_length=4)]
TokenIds = Annotated[list[TokenId], msgspec.Meta(min_length=1)]
Prompts = Annotated[list[str | TokenId | TokenIds], msgspec.Meta(min_length=1)]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How a stream is told."""

    include_usage: bool = False
    """Send a last chunk with token counts, and `usage: null` before it."""
    include_obfuscation: bool = False
    """Changes nothing here."""


class TextPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One turn of a conversation, also as a former answer comes back from a client."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning: Any = None
    reasoning_content: Any = None
    annotations: Any = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None


class Common(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What chat and plain completions share."""

    model: str
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    """0 or -1: all tokens."""
    min_p: Share | None = None
    seed: Seed | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: dict[TokenId, Bias] | None = None
    stop: StopText | Stops | None = None
    ignore_eos: bool = False
    n: Choices | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    service_tier: Literal["auto", "default", "flex"] | None = None
    """`flex`: best effort; it waits, and is never refused for being late."""
    # Change nothing here.
    user: str | None = None
    metadata: Any = None
    store: Any = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


class ChatRequest(Common, forbid_unknown_fields=True, kw_only=True):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
    max_completion_tokens: Tokens | None = None
    """Newer name of `max_tokens`."""
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables for the model's chat template."""
    # Change nothing here.
    parallel_tool_calls: bool | None = None
    prediction: Any = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    # Cannot be honoured.
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    response_format: Any = None
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None


class CompletionRequest(Common, forbid_unknown_fields=True, kw_only=True):
    """Body of `POST /v1/completions`."""

    prompt: str | Prompts
    """A text or token ids, or a list of texts and lists of token ids."""
    logprobs: TopLogprobs | None = None
    # Cannot be honoured.
    best_of: Any = None
    echo: Any = None
    suffix: Any = None


MEANS_NOTHING: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "tool_calls": ([],),
}
"""Fields that cannot be honoured, and the values, beside null, that ask for nothing."""
