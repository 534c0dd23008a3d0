"""How does an operator move what runs, while it runs?"""

import click

from llmhostd.api.nearest import nearest
from llmhostd.api.service import Moving
from llmhostd.cli.daemon_client import running_daemon
from llmhostd.cli.root import Place, example
from llmhostd.domain.errors import CallerError
from llmhostd.domain.snapshot import ModelSnapshot, RequestSnapshot


@click.command(epilog=example("move req-12 cpu1", "move tiny-llama gpu0"))
@click.argument("what", metavar="REQUEST|MODEL")
@click.argument("node")
@click.pass_obj
def move(place: Place, /, what: str, node: str) -> None:
    """Let what runs go on on another node, without a gap.

    A request stays where it is until NODE has computed what it said so far; then its stream goes on there. Of a model,
    all live requests move, a few at a time. Sent to where it still is, a request stays there; on its way elsewhere, it
    goes to NODE instead.
    """
    with running_daemon(place) as daemon:
        models = [one.name for one in daemon.get("/api/v1/models", tuple[ModelSnapshot, ...])]
        requests = [one.id for one in daemon.get("/api/v1/requests", tuple[RequestSnapshot, ...])]
        if what not in requests and what not in models:
            hint = nearest(what, [*requests, *models]) or "; nothing runs"
            raise CallerError(f"no request that runs and no model is called {what!r}{hint}")
        kind = "requests" if what in requests else "models"
        moving = daemon.post(f"/api/v1/{kind}/{what}/move", {"node": node}, Moving)
    for one in moving.stays:
        click.echo(f"{one.id}: stays; {one.because}")
    for name in moving.goes:
        click.echo(f"{name}: goes to {node}; `llmhostd ps` shows it")
    if moving.stays:
        raise click.exceptions.Exit(1)
    if not moving.goes:
        click.echo(f"{what}: nothing of it runs elsewhere than on {node}")
