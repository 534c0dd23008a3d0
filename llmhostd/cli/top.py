"""How does a person watch the box?"""

import click
from llmhostd_tui.app import run

from llmhostd.cli.daemon_client import SOCKET_FILE, state_dir_of
from llmhostd.cli.root import Place, example


@click.command(epilog=example("top", "--url http://other:11500 --key KEY top"))
@click.pass_obj
def top(place: Place) -> None:
    """Watch nodes, instances and requests on a terminal.

    Also the last decisions, and why they were taken. Waits for a daemon that is not there yet.
    """
    run(place.url, None if place.url else state_dir_of(place) / SOCKET_FILE, place.key)
