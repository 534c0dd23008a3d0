"""How much was each model used?"""

from collections.abc import Sequence
from urllib.parse import urlencode

import click
import msgspec
from llmhostd_tui.words import spell_share
from rich.text import Text

from llmhostd.cli.daemon_client import daemon_if_running
from llmhostd.cli.registry import existing_database
from llmhostd.cli.root import Place, example
from llmhostd.cli.terminal import PlainTable, bar, console
from llmhostd.domain.snapshot import UsageRow
from llmhostd.state.usage import UsageTable


@click.command(epilog=example("usage", "usage --per day --since 2026-11-01", "usage --json | jq '.[].output_tokens'"))
@click.option("--per", type=click.Choice(["total", "day"]), default="total", help="One row per model, or per model and "
              "day (UTC).", show_default=True)  # fmt: skip
@click.option("--since", default="", metavar="DAY", help="First day that counts, as 2026-01-31.  [default: all]")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.pass_obj
def usage(place: Place, /, per: str, since: str, as_json: bool) -> None:
    """Show how much each model was used.

    Requests and tokens, kept across restarts. Bars compare output tokens.
    """
    rows = _rows(place, per, since)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=2))
        return
    console().print(usage_table(rows, days=per == "day") if rows else "nothing was used yet")


def _rows(place: Place, per: str, since: str) -> Sequence[UsageRow]:
    """From the daemon, which has the latest; without one, from its state."""
    with daemon_if_running(place) as daemon:
        if daemon:
            asked = urlencode({"per": per, "since": since})
            return daemon.get(f"/api/v1/usage?{asked}", tuple[UsageRow, ...])
    db = existing_database(place)
    return UsageTable(db).rows(per_day=per == "day", since=since) if db else ()


def usage_table(rows: Sequence[UsageRow], *, days: bool) -> PlainTable:
    """One row per counter."""
    counts = ("REQUESTS", "REFUSED", "FAILED", "TOKENS IN", "CACHED", "TOKENS OUT")
    table = PlainTable(*(["DAY"] if days else []), "MODEL", *counts, "", spare=("", "CACHED", "FAILED"), right=counts)
    most = max(row.output_tokens for row in rows)
    for row in rows:
        cached = row.cached_tokens / row.prompt_tokens if row.prompt_tokens else 0.0
        table.add_row(
            *([row.day] if days else []), row.model, f"{row.requests:,}", _count(row.refused, "yellow"),
            _count(row.failed, "red"), f"{row.prompt_tokens:,}", spell_share(cached), f"{row.output_tokens:,}",
            bar([(row.output_tokens, "green")], most),
        )  # fmt: skip
    return table


def _count(count: int, style: str) -> Text:
    return Text(f"{count:,}", style if count else "dim")
