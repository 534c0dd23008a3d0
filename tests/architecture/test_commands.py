"""Does every command that the documents show exist, with those options, and every path that they ask for?"""

import re
import shlex

import click
import msgspec
import pytest
from prometheus_client import CollectorRegistry
from tree import ROOT

from llmhostd.api.app import create_app
from llmhostd.api.errors import ErrorBody
from llmhostd.api.policy import HttpPolicy
from llmhostd.cli.root import root

DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "packaging/INSTALL.md")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
HTTP_PATH = re.compile(r"(?<![\w.])/(?:v1|api/v1|healthz|readyz|metrics|schema)\b[\w/{}-]*")
BASES = {"/v1", "/api/v1"}


def fenced(document: str, *languages: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return [body for language, body in FENCE.findall(text) if language in languages]


def commands() -> list[tuple[str, str]]:
    found = []
    for document in DOCUMENTS:
        for body in fenced(document, "sh", "console"):
            for line in body.replace("\\\n", " ").splitlines():
                command = line.removeprefix("$ ").split(" #")[0].split(" | ")[0].strip()
                if command.startswith(("llmhostd ", "make ")):
                    found.append((document, command))
    return found


@pytest.mark.parametrize(("document", "command"), commands())
def test_command_exists(document: str, command: str) -> None:
    program, *words = shlex.split(command)
    if program == "make":
        targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert set(words) <= targets
    else:
        follow(root, words)


def follow(command: click.Command, words: list[str]) -> None:
    """Walk down the command tree; every option must be one of the commands so far."""
    known = options_of(command)
    for word in words:
        if word.startswith("--"):
            assert word.split("=")[0] in known, f"no option {word}"
        elif isinstance(command, click.Group) and word in command.list_commands(click.Context(command)):
            command = command.get_command(click.Context(command), word) or command
            known |= options_of(command)
    assert not isinstance(command, click.Group) or "--help" in words or "--version" in words, f"{words} is no command"


def options_of(command: click.Command) -> set[str]:
    return {"--help"} | {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_the_first_commands_of_the_readme_are_the_two() -> None:
    first = [command for document, command in commands() if document == "README.md"][:2]
    assert first == ["make run", "make check"]


def test_a_refusal_looks_as_the_readme_says() -> None:
    refusals = [body for body in fenced("README.md", "json") if '"error"' in body]
    assert refusals
    for body in refusals:
        shown = msgspec.json.decode(body, type=ErrorBody)
        assert msgspec.json.decode(msgspec.json.encode(shown)) == msgspec.json.decode(body)


@pytest.mark.parametrize("body", fenced("README.md", "python"))
def test_python_examples_are_python(body: str) -> None:
    compile(body, "README.md", "exec")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_http_path_that_a_document_names_is_served(document: str) -> None:
    app = create_app(None, HttpPolicy(), CollectorRegistry())  # type: ignore[arg-type]
    served = {re.sub(r"\{\w+(:\w+)?\}", "{name}", route.path) for route in app.routes}
    text = (ROOT / document).read_text(encoding="utf-8")
    named = {
        re.sub(r"\{\w+\}", "{name}", path.rstrip("/"))
        for path in HTTP_PATH.findall(text.replace("127.0.0.1:11500", ""))
    }
    assert named <= served | BASES


def test_models_that_the_readme_asks_are_made_by_make_run() -> None:
    from llmhostd.demo.catalog import DEMO_MODELS

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\bdemo-(?:prose|noise)[\w-]+", text)) <= {model.name for model in DEMO_MODELS}
