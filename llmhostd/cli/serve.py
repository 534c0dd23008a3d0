"""How is the daemon run from a terminal, or by systemd?"""

import logging
import os
from dataclasses import replace

import click

from llmhostd.cli.daemon_client import config_of, state_dir_of
from llmhostd.cli.root import Place, example
from llmhostd.daemon.life import run
from llmhostd.domain.errors import CallerError

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


@click.command(epilog=example("serve", "serve --port 8080", "--state-dir /srv/llmhostd serve"))
@click.option("--host", help="Address to listen on.  [default: as configured, 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="TCP port; 0 takes a free one and says which.  "
              "[default: as configured, 11500]")  # fmt: skip
@click.option("--log-level", type=click.Choice(list(LEVELS)), default="info", help="What to say on stderr.",
              show_default=True)  # fmt: skip
@click.option("--profile-at-start", is_flag=True, help="Measure models that never ran here before anybody asks for "
              "them.  [default: as configured]")  # fmt: skip
@click.pass_obj
def serve(place: Place, /, host: str | None, port: int | None, log_level: str, profile_at_start: bool) -> None:
    """Run the daemon.

    Until SIGTERM or Ctrl-C: then running requests may finish, new ones are refused; a second one hurries.
    """
    if place.url:
        raise CallerError("serve runs a daemon here: leave out --url", field="url")
    log_to_stderr(LEVELS[log_level])
    config = config_of(place)
    http = replace(config.http, host=host or config.http.host, port=config.http.port if port is None else port)
    daemon = replace(config.daemon, profile_at_start=config.daemon.profile_at_start or profile_at_start)
    run(replace(config, http=http, daemon=daemon), state_dir_of(place))


def log_to_stderr(level: int) -> None:
    """With times, unless the journal has its own."""
    times = "" if os.environ.get("JOURNAL_STREAM") else "%(asctime)s "
    logging.basicConfig(level=level, format=f"{times}%(levelname)s %(name)s: %(message)s")
    if level > logging.DEBUG:
        for chatty in ("httpx", "uvicorn.error"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
