"""How does a person learn what is broken or slow here?"""

import resource
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec
from llmhostd_tui.words import spell_bytes
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
    ended,
    good,
    served_paths,
    slow,
)
from llmhostd.cli.copies import leftovers
from llmhostd.cli.daemon_checks import check_daemon
from llmhostd.cli.daemon_client import config_of, state_dir_of
from llmhostd.cli.engine_checks import check_engines
from llmhostd.cli.node_checks import check_nodes
from llmhostd.cli.registry import model_files
from llmhostd.cli.root import Place, example
from llmhostd.cli.terminal import console
from llmhostd.config import find_config
from llmhostd.daemon.node_defaults import look_at
from llmhostd.daemon.nodes import NodeLayout, node_layout
from llmhostd.devices.acceleration import Acceleration
from llmhostd.devices.probe import CpuFacts
from llmhostd.domain.errors import LlmhostdError
from llmhostd.domain.words import Word
from llmhostd.loader.adapter import WEIGHTS_FILE, is_adapter
from llmhostd.loader.header import read_header
from llmhostd.loader.lease import why_not_leased
from llmhostd.loader.page_cache import weight_files
from llmhostd.loader.plain_file import readable
from llmhostd.loader.safetensors import describe
from llmhostd.loader.store_index import arrives

MARKS = {Mark.GOOD: "[green]✓[/]", Mark.SLOW: "[yellow]![/]", Mark.BROKEN: "[bold red]✗[/]"}


@click.command(epilog=example("doctor", "--state-dir /var/lib/llmhostd doctor", "doctor --json"))
@click.option("--json", "as_json", is_flag=True, help="Findings, nodes and what is left out, for a program.")
@click.pass_obj
def doctor(place: Place, /, as_json: bool) -> int:
    """Look for what is broken or slow here, and say why.

    Changes nothing. Exits with 1 if something is broken.
    """
    diagnosis = examine(place)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(diagnosis), indent=2))
    else:
        table = Table(box=None, show_header=False, pad_edge=False)
        for one in diagnosis.findings:
            table.add_row(MARKS[one.mark], one.subject, one.sentence)
        console().print(table)
    return 1 if any(one.mark is Mark.BROKEN for one in diagnosis.findings) else 0


class Diagnosis(Word):
    """What `doctor --json` prints."""

    findings: tuple[Finding, ...]
    acceleration: Acceleration
    """Of this machine's CPUs."""
    layout: NodeLayout | None
    """The nodes of this configuration; null if it cannot be resolved on this machine."""


def examine(place: Place) -> Diagnosis:
    """Every check, from the machine up to the daemon."""
    machine = look_at()
    findings = [*check_machine(machine.cpu)]
    try:
        config = config_of(place)
    except LlmhostdError as error:
        findings.append(broken("settings", ended(error)))
        return Diagnosis(findings=tuple(findings), acceleration=machine.acceleration, layout=None)
    file = find_config(place.config)
    findings.append(good("settings", f"{file} is in force." if file else "no file: every setting has its default."))
    layout = None
    try:
        layout = node_layout(config.nodes, config.devices, config.machine_memory, machine)
    except LlmhostdError as error:
        findings.append(broken("nodes", ended(error)))
    else:
        findings += [*check_nodes(layout, machine.acceleration), *check_engines(layout.nodes)]
    findings += [*check_state(state_dir_of(place)), *check_files(place), *check_copies(place)]
    said, ours = check_daemon(place)
    findings += [*said, *check_port(config.http.host, config.http.port, ours)]
    return Diagnosis(findings=tuple(findings), acceleration=machine.acceleration, layout=layout)


def check_files(place: Place) -> Iterator[Finding]:
    """Whether what models are served from can be read, as far as that is seen without reading all of it."""
    try:
        paths = sorted(served_paths(state_dir_of(place)))
    except (sqlite3.Error, OSError):
        return  # what is wrong with the state is another finding
    unleased: dict[str, list[Path]] = {}
    for path in paths:
        try:
            with readable(path):
                read_header(path / WEIGHTS_FILE) if is_adapter(path) else describe(path)
                owner_id = state_dir_of(place).stat().st_uid
                files = [path / WEIGHTS_FILE] if is_adapter(path) else weight_files(path)
                for why_not in {why_not_leased(file, owner_id): None for file in files if not arrives(path)}:
                    unleased.setdefault(why_not, []).append(path)
        except LlmhostdError as error:
            yield broken("files", ended(error))
    yield from (_unleased(why_not, found) for why_not, found in unleased.items() if why_not)


def _unleased(why_not: str, paths: Sequence[Path]) -> Finding:
    """Served from files of which nobody is told when they are written to."""
    more = f" and of {len(paths) - 1} more model(s)" if len(paths) > 1 else ""
    return slow(
        "files",
        f"the files of {paths[0]}{more} cannot be leased: {why_not}. Whoever cuts one short while it is used takes a"
        " worker down: replace them by name only, or let `llmhostd models add` make a store of them.",
    )


def check_copies(place: Place) -> Iterator[Finding]:
    """What was made for models and serves none."""
    try:
        left = leftovers(model_files(place), served_paths(state_dir_of(place)))
    except (sqlite3.Error, OSError):
        return  # what is wrong with the state is another finding
    for one in left:
        sentence = f"{one.path} is {one.what}: {spell_bytes(one.bytes)}. Adding it again takes it up, "
        yield slow("leftover", f"{sentence}`llmhostd models rm {one.name}` deletes it.")


def check_machine(facts: CpuFacts) -> Iterator[Finding]:
    """Whatever is as it is, however llmhostd is set up."""
    yield from check_cpu(facts)
    yield from check_clock_speed()
    yield from check_neighbours(facts)
    yield from check_memory()
    yield from check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
