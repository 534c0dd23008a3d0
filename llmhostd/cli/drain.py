"""How does an operator take a node out of use, and give it back?"""

import click

from llmhostd.cli.daemon_client import running_daemon
from llmhostd.cli.root import Place, example


@click.command(epilog=example("drain cpu1", "drain cpu1 --end"))
@click.argument("node")
@click.option("--end", is_flag=True, help="Use the node again.")
@click.pass_obj
def drain(place: Place, /, node: str, end: bool) -> None:
    """Let a node run empty, or use it again.

    Nothing new goes to NODE while it drains; what runs there moves to another one, on the same stream, or ends there.
    """
    path = f"/api/v1/nodes/{node}/drain"
    with running_daemon(place) as daemon:
        if end:
            daemon.delete(path)
        else:
            daemon.post(path, {}, object)
    click.echo(f"{node}: is used again" if end else f"{node}: drains; `llmhostd ps` shows it")
