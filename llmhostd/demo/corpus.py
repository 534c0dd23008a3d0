"""What English text is on every machine that runs Python?

The language reference that `help()` shows (`pydoc_data.topics`) and the docstrings of the standard library. Nothing is
downloaded, and one version of Python gives one text.
"""

import ast
import re
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

_SHORTEST_CHARS, _LONGEST_CHARS = 60, 900
_LEAST_PLAIN = 0.95
"""Share of letters, spaces and punctuation of sentences from which a paragraph is prose, not code or grammar."""
_PLAIN = re.compile(r"[A-Za-z ,.;:’-]")
_MARKUP = re.compile(r"`+|\*\*|(?<!\w)\*(?=\w)|(?<=\w)\*(?!\w)|\[\d+\]|:\w+:(?=`)")


@cache
def reference_text() -> str:
    """All topics of the language reference, about 0.5 MB."""
    return "\n\n".join(topics[name] for name in sorted(topics))


@cache
def reference_paragraphs() -> tuple[str, ...]:
    """Prose of the language reference, about 500 paragraphs."""
    return tuple(_prose(reference_text()))


@cache
def docstring_paragraphs() -> tuple[str, ...]:
    """Prose of the docstrings of the standard library's top modules; empty where its sources are not installed."""
    return tuple(paragraph for file in _library_files() for text in _docstrings(file) for paragraph in _prose(text))


def library_text(most_bytes: int) -> Iterator[str]:
    """Sources of the standard library's top modules, file by file, for vocabularies larger than prose gives."""
    for file in _library_files():
        text = file.read_text(encoding="utf-8", errors="replace")
        most_bytes -= len(text)
        if most_bytes < 0:
            return
        yield text


def _library_files() -> list[Path]:
    return sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))


def _docstrings(file: Path) -> Iterator[str]:
    tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text


def _prose(text: str) -> Iterator[str]:
    """Paragraphs that are whole sentences of plain words, unwrapped, without markup."""
    seen = set()
    for block in re.split(r"\n\s*\n", text):
        paragraph = " ".join(_MARKUP.sub("", block).split())
        paragraph = paragraph.removeprefix("Note: ").removeprefix("- ")
        if not _SHORTEST_CHARS <= len(paragraph) <= _LONGEST_CHARS or paragraph in seen:
            continue
        if not paragraph[0].isupper() or paragraph[-1] not in ".!" or ">>>" in paragraph:
            continue
        if len(_PLAIN.findall(paragraph)) >= _LEAST_PLAIN * len(paragraph):
            seen.add(paragraph)
            yield paragraph
