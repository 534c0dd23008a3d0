"""How does a person learn whether the box would decide today as it did then?"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from llmhostd.cli.daemon_client import state_dir_of
from llmhostd.cli.root import Place, example
from llmhostd.cli.terminal import PlainTable, aside, console
from llmhostd.config import load_config
from llmhostd.domain.actions import HostAction
from llmhostd.domain.errors import CallerError, OperatorError
from llmhostd.evaluation.again import Comparison, Difference, Kind, decide_again
from llmhostd.state.journal import JOURNAL_FILE, Journal, Start

SHOWN_CHARACTERS = 300
"""Of an event; --json has all of it."""


@click.command(
    epilog=example("replay", "replay --list", "replay --start 3 --with-settings new.toml", "replay --json --most 100")
)
@click.option("--list", "lists", is_flag=True, help="Say which starts of the daemon are in the journal.")
@click.option("--start", "number", type=click.IntRange(min=1), help="Which of them.  [default: the last]")
@click.option("--with-settings", type=click.Path(dir_okay=False, path_type=Path), help="Decide by this file's settings "
              "(TOML) instead of those of then.")  # fmt: skip
@click.option("--most", type=click.IntRange(min=1), default=5, help="Differences shown.", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.pass_obj
def replay(
    place: Place, /, lists: bool, number: int | None, with_settings: Path | None, most: int, as_json: bool
) -> int:
    """Decide the journal's events again, and show what differs.

    The daemon keeps what it heard and decided (lengths, no contents) since it started. A fresh mind, made with what the
    daemon's was made with, hears the same again. Exit status 1 if any decision or reason differs.
    """
    with _journal(place) as journal:
        starts = journal.starts()
        if lists:
            _list(journal, starts)
            return 0
        start = _chosen(starts, number, journal)
        policies = load_config(with_settings).host_policies() if with_settings else None
        with aside().status("deciding again"):
            compared = decide_again(start, journal.steps(start), policies=policies, most=most)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(compared), indent=2))
    else:
        click.echo(as_text(compared))
    return 0 if compared.same else 1


@contextmanager
def _journal(place: Place) -> Iterator[Journal]:
    directory = state_dir_of(place)
    if not (directory / JOURNAL_FILE).exists():
        raise OperatorError(f"{directory / JOURNAL_FILE}: there is no journal; the daemon writes one while it serves")
    with closing(Journal(directory)) as journal:
        yield journal


def _chosen(starts: list[Start], number: int | None, journal: Journal) -> Start:
    if not starts:
        raise OperatorError(f"{journal.file} is empty")
    for start in reversed(starts):
        if number in (None, start.number):
            return start
    known = ", ".join(str(start.number) for start in starts)
    raise CallerError(f"start {number} is not in the journal; there are: {known}", field="start")


def _list(journal: Journal, starts: list[Start]) -> None:
    table = PlainTable("start", "began", "version", "steps", "lasted", "whole")
    for start in starts:
        steps, lasted_s = journal.extent(start)
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(start.at_unix_s))
        whole = "yes" if start.first_kept == 1 else f"from step {start.first_kept}"
        table.add_row(str(start.number), began, start.version, f"{steps:,}", f"{lasted_s:,.0f} s", whole)
    console().print(table)


def as_text(compared: Comparison) -> str:
    """Draw a comparison for a terminal."""
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(compared.at_unix_s))
    amount = f"{compared.steps:,} events, {compared.actions:,} decisions"
    lines = [f"start {compared.start}, {began}, llmhostd {compared.version}: {amount}"]
    if compared.same:
        return "\n".join([*lines, "decided again: the same decisions for the same reasons"])
    lines.append(
        f"decided again: {compared.deeds_differ:,} events are answered otherwise, "
        f"{compared.reasons_differ:,} alike but for other reasons"
    )
    for one in compared.first:
        lines += ["", *_difference(one)]
    if compared.deeds_differ > 1:
        lines += ["", "What follows the first other answer may follow from it."]
    return "\n".join(lines)


def _difference(one: Difference) -> Iterator[str]:
    event = msgspec.json.encode(one.event).decode()
    short = event if len(event) <= SHOWN_CHARACTERS else f"{event[:SHOWN_CHARACTERS]} ..."
    what = "answered otherwise" if one.kind is Kind.DEED else "for another reason"
    yield f"event {one.sequence:,}, {one.after_s:.3f} s after the first, {what}: {short}"
    then, now = _said(one.then, one.error_then), _said(one.now, one.error_now)
    for name, said in (("then", then), ("now", now)):
        yield from (f"  {name:<5}{line}" for line in said)
    if then == now:
        was, is_ = msgspec.to_builtins(one.then), msgspec.to_builtins(one.now)
        yield from (f"  {where}: {old} then, {new} now" for where, old, new in _apart(was, is_))


def _said(actions: Sequence[HostAction], error: str) -> list[str]:
    said = [f"{type(action).__name__} {_subject(action)}: {action.because}" for action in actions]
    return said + ([f"raised {error}"] if error else []) or ["nothing"]


def _apart(then: Any, now: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Find what differs between values that look alike in short: the path of a field, and both values."""
    if isinstance(then, dict) and isinstance(now, dict):
        for name in then | now:
            yield from _apart(then.get(name), now.get(name), f"{where}.{name}" if where else name)
    elif isinstance(then, list | tuple) and isinstance(now, list | tuple) and len(then) == len(now):
        for old, new in zip(then, now, strict=True):
            yield from _apart(old, new, where)
    elif then != now:
        yield where, then, now


def _subject(action: msgspec.Struct) -> str:
    """Whom an action is about, and where."""
    request = getattr(action, "request", None)
    about = getattr(request, "id", "") or getattr(action, "request_id", "") or getattr(action, "model", "")
    where = getattr(action, "instance_id", "") or getattr(action, "node_id", "")
    return " on ".join(part for part in (about, where) if part)
