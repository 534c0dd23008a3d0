"""What is every node, instance and request doing now? One look; `top` watches."""

from collections.abc import Sequence

import click
import msgspec
from llmhostd_tui.memory import Moment
from llmhostd_tui.words import spell_bytes, spell_rate, spell_seconds, spell_share
from rich.text import Text

from llmhostd.cli.daemon_client import running_daemon
from llmhostd.cli.root import Place, example
from llmhostd.cli.terminal import PlainTable, bar, console
from llmhostd.domain.model import ModelState
from llmhostd.domain.request import Tier
from llmhostd.domain.snapshot import HostSnapshot, InstanceSnapshot, ModelSnapshot, NodeSnapshot, RequestSnapshot

STATE_STYLES = {ModelState.RESIDENT: "green", ModelState.WARM: "yellow", ModelState.QUARANTINED: "red"}


@click.command(epilog=example("ps", "ps --json | jq '.requests[].headroom_s'"))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.pass_obj
def ps(place: Place, as_json: bool) -> None:
    """Show what every node, instance and request is doing now.

    Headroom is how long a request's next token can wait before its promise is broken.
    """
    with running_daemon(place) as daemon:
        nodes = daemon.get("/api/v1/nodes", tuple[NodeSnapshot, ...])
        instances = daemon.get("/api/v1/instances", tuple[InstanceSnapshot, ...])
        requests = daemon.get("/api/v1/requests", tuple[RequestSnapshot, ...])
        models = daemon.get("/api/v1/models", tuple[ModelSnapshot, ...])
        draining = daemon.get("/api/v1/host", HostSnapshot).draining
    if as_json:
        whole = {"nodes": nodes, "instances": instances, "requests": requests}
        click.echo(msgspec.json.format(msgspec.json.encode(whole), indent=2))
        return
    out = console()
    if draining:
        out.print("[yellow]the daemon stops soon: running requests end, new ones are refused[/]")
    out.print(node_table(nodes))
    for node in nodes:
        if node.profiling:
            out.print(f"measuring on {node.id}: {_measuring(node.profiling)}")
    if instances:
        out.print(instance_table(instances))
    for model in models:
        if model.state is ModelState.QUARANTINED:
            out.print(Text(f"{model.name} is quarantined: {model.because}", "red"))
    for line in filter(None, map(start_line, nodes)):
        out.print(f"[dim]{line}[/]")
    if requests:
        out.print(request_table(requests, instances))
    else:
        out.print("[dim]no request is running[/]")


def node_table(nodes: Sequence[NodeSnapshot]) -> PlainTable:
    """Memory and pace of every node."""
    memory_key = "MEMORY  [blue]weights[/] [green]kv used[/] [cyan]kv[/]"
    table = PlainTable("NODE", "", "KIND", memory_key, "USED", "HELD", "PROMISED", "BUDGET", "BUSY", "ITER/S", "TOK/S",
                       "RESTARTS", spare=(memory_key, "KIND", "RESTARTS", "PROMISED", "HELD"))  # fmt: skip
    for one in nodes:
        spare = one.kv_bytes - one.kv_used_bytes
        memory = bar([(one.weights_bytes, "blue"), (one.kv_used_bytes, "green"), (spare, "cyan")], one.memory_bytes)
        now = Moment.of(one)
        table.add_row(
            one.id, _up(one), one.kind, memory, *map(spell_bytes, (now.used, now.held, now.promised, now.budget)),
            spell_share(one.busy), spell_rate(one.iterations_per_s), spell_rate(one.tokens_per_s), str(one.restarts),
        )  # fmt: skip
    return table


def instance_table(instances: Sequence[InstanceSnapshot]) -> PlainTable:
    """Every loaded model."""
    table = PlainTable("INSTANCE", "STATE", "WEIGHTS", "KV USED", "KV", "REQUESTS", "IDLE", "STARTED IN", "FORETOLD",
                       spare=("KV USED", "IDLE", "KV", "WEIGHTS"))  # fmt: skip
    for one in instances:
        table.add_row(
            one.id, Text(_state(one), STATE_STYLES.get(one.state, "")), spell_bytes(one.held_bytes),
            spell_bytes(one.kv_used_bytes), spell_bytes(one.kv_bytes), str(one.running),
            "" if one.running else spell_seconds(one.idle_s), _seconds(one.start_s), _seconds(one.estimated_start_s),
        )  # fmt: skip
    return table


def request_table(requests: Sequence[RequestSnapshot], instances: Sequence[InstanceSnapshot]) -> PlainTable:
    """Every live request, least headroom first."""
    node_of = {one.id: one.node_id for one in instances}
    table = PlainTable("REQUEST", "MODEL", "NODE", "PHASE", "PROMPT", "TOKENS OUT", "", "AGE", "HEADROOM", "MOVES",
                       spare=("", "PROMPT", "MOVES", "PHASE", "AGE"))  # fmt: skip
    for one in sorted(requests, key=lambda one: one.headroom_s):
        # Where it is, where it goes while it moves, and where it follows others to.
        nodes = [node_of[at] for at in (one.instance_id, one.moving_to) if at in node_of]
        nodes += [one.follows_to] if one.follows_to else []
        table.add_row(
            one.id, one.model, " → ".join(nodes), one.phase, str(one.prompt_tokens),
            f"{one.tokens_out}/{one.max_tokens}", bar([(one.tokens_out, "green")], one.max_tokens),
            spell_seconds(one.age_s), _headroom(one), str(one.moves or ""),
        )  # fmt: skip
    return table


def start_line(one: NodeSnapshot) -> str:
    """How right estimates of start times are on a node, and what they go by; empty before its first start."""
    if one.start_error is None:
        return ""
    return (
        f"starts on {one.id}: foretold with a median error of {spell_share(one.start_error)} (the last ten at most); "
        f"reckoned with {spell_bytes(int(one.memory_bytes_per_s))}/s for weights from memory, "
        f"{spell_bytes(int(one.disk_bytes_per_s))}/s from the disk"
    )


def _state(one: InstanceSnapshot) -> str:
    """The state, and how far its weights are if they come over a network."""
    if one.fetched_bytes is None or one.fetch_bytes is None:
        return one.state
    pace = f", {spell_bytes(int(one.fetch_bytes_per_s))}/s" if one.fetch_bytes_per_s else ""
    return f"{one.state}: {spell_bytes(one.fetched_bytes)} of {spell_bytes(one.fetch_bytes)} fetched{pace}"


def _measuring(profiling: str) -> str:
    """How far it is; at first it was only asked for."""
    model, _, progress = profiling.partition(" ")
    return f"{profiling} samples" if "/" in progress else f"{model}, from the beginning"


def _seconds(one: float | None) -> str:
    return "" if one is None else spell_seconds(one)


def _headroom(one: RequestSnapshot) -> Text:
    if one.tier is Tier.BEST_EFFORT:
        return Text("best effort", "dim")
    return Text(spell_seconds(one.headroom_s), "red" if one.headroom_s < 0 else "green")


def _up(one: NodeSnapshot) -> Text:
    state, style = ("up", "green") if one.up else ("down", "red") if one.restarts else ("starts", "yellow")
    if one.draining:
        return Text("draining" if one.up else f"{state}, draining", "yellow")
    return Text(state, style)
