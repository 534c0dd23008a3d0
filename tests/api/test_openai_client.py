"""Does the official client get what it expects, streamed and whole?"""

from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from daemon_process import DaemonProcess

HELLO = [{"role": "user", "content": "What do the words say?"}]


@pytest.fixture(scope="module")
def client(daemon: DaemonProcess) -> openai.OpenAI:
    return daemon.openai


def chat(client: openai.OpenAI, model: str = "tiny-llama", **more: object) -> object:
    wish = {"max_tokens": 24, "temperature": 0} | more
    return client.chat.completions.create(model=model, messages=HELLO, **wish)  # type: ignore[call-overload]


def streamed(client: openai.OpenAI, **more: object) -> tuple[str, str | None, object]:
    text, finish, usage = "", None, None
    for chunk in chat(client, stream=True, stream_options={"include_usage": True}, **more):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return text, finish, usage


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    assert [one.id for one in client.models.list()] == ["tiny-llama", "tiny-mistral", "tiny-qwen3"]
    assert client.models.retrieve("tiny-qwen3").owned_by == "llmhostd"
    with pytest.raises(openai.NotFoundError, match=r"no model 'tiny-lama'; did you mean 'tiny-llama'\?"):
        client.models.retrieve("tiny-lama")


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-qwen3", "tiny-mistral"])
def test_streamed_and_whole_answers_are_the_same(client: openai.OpenAI, model: str) -> None:
    whole = chat(client, model)
    text, finish, usage = streamed(client, model=model)
    assert whole.choices[0].message.content == text != ""
    assert whole.choices[0].finish_reason == finish == "length"
    assert (usage.completion_tokens, usage.total_tokens) == (24, usage.prompt_tokens + 24)
    assert whole.usage.prompt_tokens == usage.prompt_tokens


def test_two_models_stream_at_the_same_time(client: openai.OpenAI) -> None:
    alone = [streamed(client, model=model, max_tokens=80)[0] for model in ("tiny-llama", "tiny-qwen3")]
    with ThreadPoolExecutor(4) as pool:
        together = list(
            pool.map(lambda model: streamed(client, model=model, max_tokens=80)[0], ["tiny-llama", "tiny-qwen3"] * 4)
        )
    assert together == alone * 4


def test_a_prompt_seen_before_is_not_computed_again(client: openai.OpenAI) -> None:
    long = [{"role": "user", "content": "the same noise again and again. " * 8}]
    usages = [client.chat.completions.create(model="tiny-qwen3", messages=long, max_tokens=2).usage for _ in range(2)]  # type: ignore[misc]
    assert usages[1].prompt_tokens_details.cached_tokens >= 32
    assert usages[1].prompt_tokens_details.cached_tokens < usages[1].prompt_tokens


def test_a_stop_string_ends_the_answer_before_it(client: openai.OpenAI) -> None:
    text, _, _ = streamed(client, max_tokens=60)
    stop = text[10:13]
    for got, finish in (
        streamed(client, max_tokens=60, stop=stop)[:2],
        ((whole := chat(client, max_tokens=60, stop=[stop, "never"]).choices[0]).message.content, whole.finish_reason),
    ):
        assert got == text[: text.index(stop)]
        assert finish == "stop"


def test_a_seed_makes_the_draw_and_choices_differ(client: openai.OpenAI) -> None:
    wish = {"temperature": 1.0, "seed": 7, "n": 3, "max_tokens": 16}
    first, second = (chat(client, **wish) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices]
    assert len(set(texts)) == 3
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert first.usage.completion_tokens == 48
    parts = {0: "", 1: "", 2: ""}
    for chunk in chat(client, stream=True, **wish):
        for choice in chunk.choices:
            parts[choice.index] += choice.delta.content or ""
    assert list(parts.values()) == texts


def test_chat_logprobs_are_of_the_tokens_shown(client: openai.OpenAI) -> None:
    whole = chat(client, logprobs=True, top_logprobs=3).choices[0]
    positions = whole.logprobs.content
    assert len(positions) == 24
    assert all(one.top_logprobs[0].logprob == one.logprob <= 0 for one in positions)  # greedy
    assert all(len(one.top_logprobs) == 3 for one in positions)
    assert b"".join(bytes(one.bytes) for one in positions).decode(errors="replace") == whole.message.content
    shown = [
        one.logprob
        for chunk in chat(client, logprobs=True, top_logprobs=3, stream=True)
        for choice in chunk.choices
        if choice.logprobs
        for one in choice.logprobs.content
    ]
    assert shown == pytest.approx([one.logprob for one in positions], abs=1e-4)


def test_completions_of_texts_and_of_token_ids(client: openai.OpenAI) -> None:
    wish = {"model": "tiny-mistral", "max_tokens": 12, "temperature": 0}
    both = client.completions.create(prompt=["some words", "10 and 32"], logprobs=1, **wish)  # type: ignore[call-overload]
    assert [choice.index for choice in both.choices] == [0, 1]
    for choice, prompt in zip(both.choices, ["some words", "10 and 32"], strict=True):
        text = "".join(
            chunk.choices[0].text
            for chunk in client.completions.create(prompt=prompt, stream=True, **wish)  # type: ignore[call-overload]
            if chunk.choices
        )
        assert choice.text == text
        assert choice.logprobs.top_logprobs[0].keys() == {choice.logprobs.tokens[0]}
        assert choice.logprobs.text_offset[0] == 0
    one = client.completions.create(prompt=[65, 66, 67], **wish)  # type: ignore[call-overload]
    assert one.usage.prompt_tokens == 3
    assert client.completions.create(prompt=[[65, 66, 67]], **wish).choices[0].text == one.choices[0].text  # type: ignore[call-overload]


def test_flex_requests_are_served_when_nobody_else_waits(client: openai.OpenAI) -> None:
    assert streamed(client, service_tier="flex")[:2] == streamed(client)[:2]


def test_an_answer_without_max_tokens_ends_with_the_context(client: openai.OpenAI) -> None:
    whole = chat(client, max_tokens=None)
    assert whole.usage.total_tokens <= 512
    assert (whole.usage.total_tokens == 512) == (whole.choices[0].finish_reason == "length")
