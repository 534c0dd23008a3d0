"""Is every OpenAI field honoured, harmless, or refused by name?"""

import msgspec
import pytest

from llmhostd.api.convert import chat_ask, completion_ask
from llmhostd.api.errors import decode_body
from llmhostd.api.schemas import ChatRequest, CompletionRequest
from llmhostd.api.service import Conversation
from llmhostd.domain.errors import CallerError
from llmhostd.domain.request import Sampling, Tier

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}


def chat(**fields: object) -> object:
    return chat_ask(decode_body(msgspec.json.encode(HELLO | fields), ChatRequest))


def text(**fields: object) -> object:
    return completion_ask(decode_body(msgspec.json.encode(TEXT | fields), CompletionRequest))


def test_defaults_are_those_of_openai() -> None:
    ask = chat()
    assert (ask.n, ask.max_tokens, ask.stop, ask.tier) == (1, None, (), Tier.LATENCY_SENSITIVE)
    assert ask.sampling == Sampling(max_tokens=1)
    assert not ask.seeded
    assert text().max_tokens == 16


def test_every_sampling_field_arrives() -> None:
    wish = {"temperature": 0.0, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "seed": -3, "frequency_penalty": 1.5,
            "presence_penalty": -1.5, "logit_bias": {"5": 2.5}, "ignore_eos": True}  # fmt: skip
    expected = Sampling(max_tokens=1, **(wish | {"logit_bias": {5: 2.5}}))
    assert chat(**wish).sampling == expected
    assert text(**wish).sampling == expected
    assert chat(**wish).seeded


def test_all_tokens_is_zero_or_minus_one() -> None:
    assert chat(top_k=-1).sampling.top_k == chat(top_k=0).sampling.top_k == 0


def test_logprobs_of_both_endpoints() -> None:
    assert chat(logprobs=True).sampling.logprobs == 0
    assert chat(logprobs=True, top_logprobs=3).sampling.logprobs == 3
    assert chat(logprobs=False).sampling.logprobs is None
    assert text(logprobs=2).sampling.logprobs == 2


def test_messages_become_what_templates_know() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    former = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [], "annotations": [], "audio": None}
    ask = chat(
        messages=[{"role": "developer", "content": "be kind"}, {"role": "user", "content": parts, "name": "x"}, former],
        chat_template_kwargs={"enable_thinking": False},
    )
    assert ask.prompts == (
        Conversation(
            messages=(
                {"role": "system", "content": "be kind"},
                {"role": "user", "content": "ab"},
                {"role": "assistant", "content": ""},
            ),
            variables={"enable_thinking": False},
        ),
    )


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ((1, 2),)), ([[1], [2, 3]], ((1,), (2, 3)))],
)
def test_four_kinds_of_prompt(prompt: object, expected: object) -> None:
    assert text(prompt=prompt).prompts == expected


def test_stop_is_a_text_or_some() -> None:
    assert chat(stop="x").stop == ("x",)
    assert chat(stop=["x", "y"]).stop == ("x", "y")


def test_harmless_fields_are_taken() -> None:
    chat(user="u", metadata={"a": "b"}, store=True, tools=[], tool_choice="auto", response_format={"type": "text"},
         modalities=["text"], parallel_tool_calls=True, reasoning_effort="low", service_tier="auto", n=None,
         stream_options=None, max_tokens=5, max_completion_tokens=5)  # fmt: skip
    text(user="u", echo=False, best_of=1, suffix=None)


CHAT_MISTAKES = [
    ({"tools": [{"type": "function"}]}, "tools", "tools: is not supported here"),
    ({"response_format": {"type": "json_object"}}, "response_format", "response_format: is not supported here"),
    ({"temperature": 3}, "temperature", "temperature: expected `float` <= 2.0"),
    ({"temperature": "warm"}, "temperature", "temperature: expected `float | null`, got `str`"),
    ({"n": 5}, "n", "n: expected `int` <= 4"),
    ({"stop": ["a"] * 5}, "stop", "stop: expected `array` of length <= 4"),
    ({"stop": ""}, "stop", "stop: expected `str` of length >= 1"),
    ({"temprature": 1}, "temprature", "temprature: is not a field that is known here; did you mean 'temperature'?"),
    ({"messages": []}, "messages", "messages: expected `array` of length >= 1"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "messages[0].content: is required"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "messages[0].role: is required"),
    ({"messages": [{"role": "cat", "content": "x"}]}, "messages[0].role", "messages[0].role: invalid enum value 'cat'"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "text": ""}]}]},
        "messages[0].content[0].type",
        "messages[0].content[0].type: invalid enum value 'image_url'",
    ),
    (
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]},
        "messages[0].tool_calls",
        "messages[0].tool_calls: is not supported here",
    ),
    ({"max_tokens": 0}, "max_tokens", "max_tokens: expected `int` >= 1"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "max_completion_tokens: differs from max_tokens"),
    ({"top_logprobs": 2}, "top_logprobs", "top_logprobs: needs logprobs: true"),
    ({"stream_options": {}}, "stream_options", "stream_options: needs stream: true"),
    ({"logit_bias": {"a": 1}}, "logit_bias", "logit_bias: expected `int`, got `str`"),
    ({"model": None}, "model", "model: expected `str`, got `null`"),
    ({"seed": 2**63}, "seed", "seed: expected `int` <= 9223372036854775807"),
]


@pytest.mark.parametrize(("fields", "field", "message"), CHAT_MISTAKES)
def test_mistake_is_named(fields: dict[str, object], field: str, message: str) -> None:
    with pytest.raises(CallerError) as caught:
        chat(**fields)
    assert str(caught.value).startswith(message)
    assert (caught.value.field or "").startswith(field)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": []}, "prompt: expected `array` of length >= 1"),
        ({"prompt": [1, "a"]}, "prompt: mixes token ids with texts or lists"),
        ({"prompt": ["a"] * 9, "n": 2}, "prompt: 9 prompts times n = 2 are more than 16 choices"),
        ({"echo": True}, "echo: is not supported here"),
        ({"messages": []}, "messages: is not a field that is known here"),
    ],
)
def test_mistake_of_plain_completions_is_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(CallerError) as caught:
        text(**fields)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"\xff", b'{"model": "\xed\xa0\x80"}', b"[" * 100_000])
def test_what_is_no_object_is_a_callers_error(raw: bytes) -> None:
    with pytest.raises(CallerError):
        decode_body(raw, ChatRequest)
