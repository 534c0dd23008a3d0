import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmhostd.demo.vocabulary import CHAT_TEMPLATE
from llmhostd.domain.errors import CallerError, CheckpointError
from llmhostd.text.chat_template import PLAIN_TRANSCRIPT, ChatTemplate, read_templates
from llmhostd.text.template_process import TemplatePolicy, TemplateProcess

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def process() -> Iterator[TemplateProcess]:
    made = TemplateProcess(TemplatePolicy(template_cpu_s=0.5, template_max_chars=100_000))
    yield made
    made.close()


def chat(process: TemplateProcess, template: str, special: dict[str, str] | None = None) -> ChatTemplate:
    return ChatTemplate("wren", {"default": template}, {"bos_token": "<s>"} if special is None else special, process)


def test_a_conversation_in_the_demo_models_words(process: TemplateProcess) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi & <b>"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Why?"},
    ]
    template = chat(process, CHAT_TEMPLATE)
    assert template.render(messages) == (
        "<s><|system|>Be brief.<|user|>Hi & <b><|assistant|>Yes?<|end|><|user|>Why?<|assistant|>"
    )
    assert template.render(HELLO, add_generation_prompt=False) == "<s><|user|>Hello"


def test_a_checkpoint_without_a_template_gets_a_plain_transcript(process: TemplateProcess) -> None:
    assert chat(process, PLAIN_TRANSCRIPT, {}).render(HELLO) == "User: Hello\n\nAssistant:"


CHATML = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}{{- tool | tojson }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{% for message in messages %}
    {% if loop.index0 > 3 %}{% break %}{% endif %}
{{ '<|im_start|>' + message['role'] + '\\n' }}{% generation %}{{ message['content'] | trim }}{% endgeneration %}{{ '<|im_end|>' }}
{% endfor %}
{% set ns = namespace(thinks=enable_thinking is defined and enable_thinking) %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% if not ns.thinks %}{{ '<think></think>' }}{% endif %}{% endif %}"""  # noqa: E501


def test_what_templates_of_published_models_use(process: TemplateProcess) -> None:
    """tojson that keeps non-ASCII and <>&, loop controls, generation blocks, block trimming, caller's variables."""
    tools = [{"type": "function", "function": {"name": "größe", "about": "a < b & c"}}]
    text = chat(process, CHATML).render(HELLO, tools=tools, variables={"enable_thinking": True})
    assert text == (
        '<|im_start|>system\n{"type": "function", "function": {"name": "größe", "about": "a < b & c"}}<|im_end|>\n'
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert chat(process, CHATML).render(HELLO).endswith("assistant\n<think></think>")


def test_the_date_of_today(process: TemplateProcess) -> None:
    years = {time.strftime("%Y"), str(int(time.strftime("%Y")) + 1)}
    assert chat(process, "{{ strftime_now('%Y') }}").render(HELLO) in years


def test_a_callers_variable_cannot_replace_the_messages(process: TemplateProcess) -> None:
    text = chat(process, "{{ messages[0].content }}").render(HELLO, variables={"messages": [{"content": "no"}]})
    assert text == "Hello"


def test_a_refusal_by_the_template_is_the_callers_error(process: TemplateProcess) -> None:
    template = chat(process, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(CallerError, match=r"^model wren: roles must alternate$") as caught:
        template.render(HELLO)
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("a\n{% if %}", r"^model wren: chat template line 2: Expected an expression"),
        ("a\n\n{{ 1 / 0 }}", r"^model wren: chat template line 3: ZeroDivisionError"),
        ("{{ missing.field }}", r"line 1: UndefinedError: 'missing' is undefined"),
        ("{% include 'etc' %}", r"line 1: .*no loader"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", r"line 1: SecurityError|line 1: UndefinedError"),
        ("{{ messages.append(1) }}", r"line 1: SecurityError"),
        ("{% macro m() %}\n{{ m() }}{% endmacro %}{{ m() }}", r"line 2: it recurses too deep"),
    ],
)
def test_a_broken_template_names_model_and_line(process: TemplateProcess, template: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        chat(process, template).render(HELLO)


BOMBS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "range": "{% for a in range(10**9) %}{% endfor %}",
    "string": "{{ 'a' * 10**9 }}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "pad": "{{ '%2000000000d' % 1 }}",
    "center": "{{ 'a' | center(2000000000) }}",
    "doubling": "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "list": "{{ [1] * 10**9 }}",
    "output": "{% for a in range(99999) %}{{ 'aaaaaaaaaaaaaaaaaaaa' }}{% endfor %}",
    "lorem": "{{ lipsum(n=10000000) }}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_costs_its_own_request_only(process: TemplateProcess, name: str) -> None:
    with pytest.raises(CheckpointError, match=r"^model wren: chat template( line 1)?: "):
        chat(process, BOMBS[name]).render(HELLO)
    assert chat(process, "{{ messages[0].content }}").render(HELLO) == "Hello"


def test_a_template_that_keeps_crossing_its_limits_is_not_run_again(process: TemplateProcess) -> None:
    bomb = chat(process, BOMBS["loops"])
    for _ in range(3):
        with pytest.raises(CheckpointError, match="CPU time"):
            bomb.render(HELLO)
    with pytest.raises(CheckpointError, match="not run any more"):
        bomb.render(HELLO)


def test_the_next_rendering_survives_the_death_of_the_process(process: TemplateProcess) -> None:
    template = chat(process, "{{ messages[0].content }}")
    template.render(HELLO)
    child = process.child_pid
    assert child is not None
    os.kill(child, 9)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert template.render(HELLO) == "Hello"
    assert process.child_pid != child


def test_long_messages_pass_through_the_pipe(process: TemplateProcess) -> None:
    content = "ü" * 90_000
    assert chat(process, "{{ messages[0].content }}").render([{"role": "user", "content": content}]) == content


def test_where_templates_come_from(tmp_path: Path) -> None:
    assert read_templates(tmp_path, {}) == {"default": PLAIN_TRANSCRIPT}
    assert read_templates(tmp_path, {"chat_template": "a"}) == {"default": "a"}
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    assert read_templates(tmp_path, {"chat_template": named}) == {"default": "a", "tool_use": "b"}
    (tmp_path / "chat_template.jinja").write_text("file")
    assert read_templates(tmp_path, {"chat_template": "a"}) == {"default": "file"}


@pytest.mark.parametrize("stored", [7, [{"name": "default"}], [], [{"name": "rag", "template": "x"}]])
def test_a_misshapen_template_entry_names_the_file(tmp_path: Path, stored: object) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: `chat_template`"):
        read_templates(tmp_path, json.loads(json.dumps({"chat_template": stored})))


def test_the_template_for_tools_is_used_when_there_are_tools(process: TemplateProcess) -> None:
    template = ChatTemplate("wren", {"default": "a", "tool_use": "b"}, {}, process)
    assert (template.render(HELLO), template.render(HELLO, tools=[{"type": "function"}])) == ("a", "b")
