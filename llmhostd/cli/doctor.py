"""How does a person learn what is broken or slow here?"""

import resource
from collections.abc import Iterator

import click
from rich.table import Table

from llmhostd.cli.checks import (
    Finding,
    Mark,
    broken,
    check_clock_speed,
    check_cpu,
    check_memory,
    check_neighbours,
    check_open_files,
    check_port,
    check_state,
    good,
)
from llmhostd.cli.daemon_client import config_of, daemon_if_running, state_dir_of
from llmhostd.cli.engine_checks import check_engines
from llmhostd.cli.root import Place, example
from llmhostd.cli.terminal import console
from llmhostd.config import find_config
from llmhostd.devices.probe import probe_cpu
from llmhostd.domain.errors import LlmhostdError
from llmhostd.domain.model import ModelState
from llmhostd.domain.snapshot import ModelSnapshot

MARKS = {Mark.GOOD: "[green]✓[/]", Mark.SLOW: "[yellow]![/]", Mark.BROKEN: "[bold red]✗[/]"}


@click.command(epilog=example("doctor", "--state-dir /var/lib/llmhostd doctor"))
@click.pass_obj
def doctor(place: Place) -> int:
    """Look for what is broken or slow here, and say why.

    Changes nothing. Exits with 1 if something is broken.
    """
    table = Table(box=None, show_header=False, pad_edge=False)
    found = list(examine(place))
    for one in found:
        table.add_row(MARKS[one.mark], one.subject, one.sentence)
    console().print(table)
    return 1 if any(one.mark is Mark.BROKEN for one in found) else 0


def examine(place: Place) -> Iterator[Finding]:
    """Every check, from the machine up to the daemon."""
    facts = probe_cpu()
    yield from check_cpu(facts)
    yield from check_clock_speed()
    yield from check_neighbours(facts)
    yield from check_memory()
    yield from check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield from check_engines()
    try:
        config = config_of(place)
    except LlmhostdError as error:
        yield broken("settings", f"{error}.")
        return
    file = find_config(place.config)
    yield good("settings", f"{file} is in force." if file else "no file: every setting has its default.")
    yield from check_state(state_dir_of(place))
    findings, ours = examine_daemon(place)
    yield from findings
    yield from check_port(config.http.host, config.http.port, ours)


def examine_daemon(place: Place) -> tuple[list[Finding], bool]:
    """What the running daemon says of itself, and whether there is one."""
    try:
        with daemon_if_running(place) as daemon:
            if daemon is None:
                return [good("daemon", "none is running: `llmhostd serve` starts one.")], False
            models = daemon.get("/api/v1/models", tuple[ModelSnapshot, ...])
    except LlmhostdError as error:
        return [broken("daemon", f"{error}.")], True
    findings = [good("daemon", f"runs on {daemon.where} with {len(models)} model(s).")]
    findings += [
        broken("model", f"{one.name} is quarantined: {one.because}. `llmhostd models release {one.name}` tries again.")
        for one in models
        if one.state is ModelState.QUARANTINED
    ]
    return findings, True
