"""Scenarios: text files with a history of events and, indented below each event, what it must cause.

    # A remark.
    0.500 submit r1 on a prompt 100
        RunIteration a ...

An event line is a time (seconds; `+0.02` counts from the event before) and words, which a driver understands. With
`pytest --rewrite`, what is caused now is written into the file, and the diff is the review.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

INDENT = "    "

Respond = Callable[[float, list[str]], list[str]]
"""A driver: hears an event's time and words, returns one line per action."""


@dataclass
class Step:
    """One event line, and the lines below it."""

    line: str
    number: int
    caused: list[str] = field(default_factory=list)

    def event(self, before: float) -> tuple[float, list[str]]:
        at, *words = self.line.split()
        return (before + float(at) if at.startswith("+") else float(at)), words


def parse(text: str) -> Iterator[str | Step]:
    """Remarks and blank lines as they are, events as steps."""
    step = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            if step:
                yield step
            step = None
            yield line
        elif line[0].isspace():
            assert step, f"line {number}: an action without an event before it"
            step.caused.append(line.strip())
        else:
            if step:
                yield step
            step = Step(line.rstrip(), number)
    if step:
        yield step


def play(path: Path, respond: Respond, *, rewrite: bool) -> None:
    """Play a file against a driver; fail with what differs, or write it down."""
    expected = path.read_text(encoding="utf-8")
    lines: list[str] = []
    now = 0.0
    for part in parse(expected):
        if isinstance(part, str):
            lines.append(part)
            continue
        now, words = part.event(now)
        try:
            caused = respond(now, words)
        except (KeyError, ValueError, IndexError) as error:
            raise AssertionError(f"{path.name}:{part.number}: cannot play {part.line!r}: {error!r}") from error
        lines += [part.line, *(INDENT + line for line in caused)]
    happened = "\n".join(lines) + "\n"
    if rewrite:
        path.write_text(happened, encoding="utf-8")
        return
    assert happened.splitlines() == expected.splitlines()
