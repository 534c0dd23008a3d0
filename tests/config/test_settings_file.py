"""Does etc/llmhostd.toml list every setting with its default and its sentence, and nothing else?

The expected text is made from the policy dataclasses. `REWRITE_SETTINGS=1 pytest tests/config` writes it.
"""

import ast
import dataclasses
import inspect
import itertools
import os
import sys
import textwrap
import tomllib
import typing
from pathlib import Path

from llmhostd.config import Config, NodeSettings, parse_config

FILE = Path(__file__).parents[2] / "etc" / "llmhostd.toml"
WIDTH = 118
HEAD = "\n".join((
    "# Settings of llmhostd. Everything is optional: each line below shows a default; uncomment it to change it.",
    "# A key that does not exist is an error that names the nearest one.",
))  # fmt: skip


def sentences(kind: type) -> dict[str, str]:
    """The docstring under each field, by field name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    assert isinstance(tree.body[0], ast.ClassDef)
    body = tree.body[0].body
    return {
        field.target.id: " ".join(doc.value.value.split())
        for field, doc in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant) and isinstance(doc.value.value, str)
    }


def comment(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH, initial_indent="# ", subsequent_indent="# ")


def value(default: object) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, str):
        return f'"{default}"'
    if isinstance(default, tuple):
        return f"[{', '.join(map(value, default))}]"
    return repr(default)


def table(kind: type, path: str, brackets: str = "[{}]") -> list[str]:
    doc, said = inspect.getdoc(kind) or "", sentences(kind)
    plain = [one for one in dataclasses.fields(kind) if not dataclasses.is_dataclass(one.type)]
    lines = ["", comment(doc), f"# {brackets.format(path)}"] if plain else []
    for one in plain:
        default = one.default_factory() if callable(one.default_factory) else one.default
        lines += ["#", comment(said[one.name]), f"# {one.name} = {value(default)}"]
    for one in dataclasses.fields(kind):
        if dataclasses.is_dataclass(one.type):
            lines += table(typing.cast("type", one.type), f"{path}.{one.name}")
    return lines


def expected() -> str:
    lines = [HEAD]
    for one in dataclasses.fields(Config):
        if one.name == "nodes":
            lines += table(NodeSettings, "nodes", "[[{}]]")
        else:
            lines += table(typing.cast("type", one.type), one.name)
    return "\n".join(lines) + "\n"


def test_file_lists_every_setting_with_its_default_and_sentence() -> None:
    text = expected()
    if os.environ.get("REWRITE_SETTINGS"):
        FILE.write_text(text, encoding="utf-8")
    assert FILE.read_text(encoding="utf-8") == text, f"REWRITE_SETTINGS=1 {sys.executable} -m pytest {__file__}"


def test_the_file_changes_nothing_commented_or_not() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert parse_config(tomllib.loads(text), "etc") == Config()
    settings = [line[2:] for line in text.splitlines() if line.startswith("# [") or " = " in line]
    config = parse_config(tomllib.loads("\n".join(settings)), "etc")
    assert config == dataclasses.replace(Config(), nodes=(NodeSettings(),))
