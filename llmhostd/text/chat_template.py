"""What does a conversation look like to a model?

The template comes from `chat_template.jinja`, or from `chat_template` in tokenizer_config.json (a string, or a list of
named ones), or is a plain transcript when the checkpoint has none.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmhostd.domain.errors import CallerError, CheckpointError, in_words
from llmhostd.text.template_process import RenderingStoppedError, TemplateProcess

PLAIN_TRANSCRIPT = """\
{%- if bos_token %}{{ bos_token }}{% endif %}
{%- for message in messages %}
    {{- message.role | capitalize + ': ' + message.content + '\\n\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}
"""
"""For checkpoints that bring no template: what a model that only continues text understands best."""

TEMPLATE_FILE = "chat_template.jinja"
_DEFAULT = "default"
_WITH_TOOLS = "tool_use"
_MOST_STOPPED = 3
"""After so many renderings that crossed a limit, a template is not run any more."""


class ChatTemplate:
    """The template(s) of one model. Thread-safe."""

    def __init__(
        self, model: str, templates: Mapping[str, str], special_tokens: Mapping[str, str], process: TemplateProcess
    ) -> None:
        """`templates`: by name, with at least `default`. `special_tokens`: variables such as `bos_token`."""
        self._model = model
        self._templates = dict(templates)
        self._special_tokens = dict(special_tokens)
        self._process = process
        self._stopped = 0

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt's text; encode it without adding special tokens. Blocks: call it in a thread.

        `variables` are the caller's own (`chat_template_kwargs`). Raises CallerError if the template refuses the
        messages, CheckpointError naming model and line if the template is broken or crosses a limit.
        """
        if self._stopped >= _MOST_STOPPED:
            raise CheckpointError(f"model {self._model}: chat template crossed its limits too often; not run any more")
        name = _WITH_TOOLS if tools and _WITH_TOOLS in self._templates else _DEFAULT
        known = {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            answer = self._process.render(self._templates[name], {**self._special_tokens, **(variables or {}), **known})
        except RenderingStoppedError as error:
            self._stopped += 1
            raise CheckpointError(f"model {self._model}: chat template: {error}") from error
        return self._text(answer)

    def _text(self, answer: Mapping[str, Any]) -> str:
        if "refused" in answer:
            raise CallerError(f"model {self._model}: {answer['refused']}", field="messages")
        if "error" in answer:
            line = f" line {answer['line']}" if answer["line"] else ""
            raise CheckpointError(f"model {self._model}: chat template{line}: {answer['error']}")
        text: str = answer["text"]
        return text


def read_templates(checkpoint: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Return the checkpoint's templates by name. Raises CheckpointError naming the file."""
    file = checkpoint / TEMPLATE_FILE
    if file.is_file():
        try:
            return {_DEFAULT: file.read_text(encoding="utf-8")}
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{file}: cannot be read: {in_words(error)}") from error
    stored = tokenizer_config.get("chat_template")
    if stored is None:
        return {_DEFAULT: PLAIN_TRANSCRIPT}
    if isinstance(stored, str):
        return {_DEFAULT: stored}
    where = f"{checkpoint / 'tokenizer_config.json'}: `chat_template`"
    templates = _named(stored, where)
    if _DEFAULT not in templates:
        raise CheckpointError(f"{where} has no template named {_DEFAULT!r}; it has {', '.join(templates) or 'none'}")
    return templates


def _named(stored: object, where: str) -> dict[str, str]:
    entries = stored if isinstance(stored, list) else [stored]
    templates = {}
    for entry in entries:
        named = entry if isinstance(entry, Mapping) else {}
        name, template = named.get("name"), named.get("template")
        if not isinstance(name, str) or not isinstance(template, str):
            raise CheckpointError(f"{where} must be a string or a list of objects with `name` and `template`")
        templates[name] = template
    return templates
