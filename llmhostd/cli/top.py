"""How does a person watch the box?"""

import sys

import click
from llmhostd_tui.app import run

from llmhostd.cli.daemon_client import SOCKET_FILE, state_dir_of
from llmhostd.cli.root import Place, example
from llmhostd.domain.errors import OperatorError


@click.command(epilog=example("top", "--url http://other:11500 --key KEY top"))
@click.pass_obj
def top(place: Place) -> None:
    """Watch nodes, instances and requests on a terminal.

    Also the last decisions, and why they were taken. Waits for a daemon that is not there yet.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise OperatorError("top draws on a terminal, and there is none: `llmhostd ps` says it once, for a pipe too")
    run(place.url, None if place.url else state_dir_of(place) / SOCKET_FILE, place.key)
