"""What does the running daemon say is wrong, and whom did the end of the last run cut off?"""

from collections.abc import Iterator, Sequence

from llmhostd.cli.checks import Finding, broken, ended, good, slow
from llmhostd.cli.daemon_client import daemon_if_running, state_dir_of
from llmhostd.cli.ps import start_line
from llmhostd.cli.root import Place
from llmhostd.daemon.returning import end_of
from llmhostd.domain.errors import LlmhostdError
from llmhostd.domain.model import ModelState
from llmhostd.domain.snapshot import HostSnapshot, ModelSnapshot, NodeSnapshot
from llmhostd.state.last_run import last_run

FAIR_ERROR = 0.25
"""Estimates of start times that are off by more than this, at the median, say that something disturbs loads."""


def check_daemon(place: Place) -> tuple[list[Finding], bool]:
    """What it says of itself, and whether there is one."""
    try:
        with daemon_if_running(place) as daemon:
            if daemon is None:
                none = good("daemon", "none is running: `llmhostd serve` starts one.")
                return [none, *_last_run(end_of(last_run(state_dir_of(place))))], False
            models = daemon.get("/api/v1/models", tuple[ModelSnapshot, ...])
            nodes = daemon.get("/api/v1/nodes", tuple[NodeSnapshot, ...])
            host = daemon.get("/api/v1/host", HostSnapshot)
    except LlmhostdError as error:
        return [broken("daemon", ended(error))], True
    runs = f"runs on {daemon.where} with {len(models)} model(s)"
    findings = [
        slow("daemon", f"{runs}, and is draining: it stops soon.") if host.draining else good("daemon", f"{runs}."),
        *_last_run(host.last_run, host.returned),
    ]
    findings += [broken("disk", f"{one}.") for one in host.not_stored]
    return [*findings, *check_served_nodes(nodes), *_check_models(models)], True


def check_served_nodes(nodes: Sequence[NodeSnapshot]) -> Iterator[Finding]:
    """Nodes that are not what they should be, as the daemon sees them now."""
    for one in nodes:
        if one.start_error is not None:
            # Whether estimates can be believed: admission, placement and Retry-After go by them.
            yield (good if one.start_error <= FAIR_ERROR else slow)("starts", f"{start_line(one)}.")
    for one in nodes:
        if not one.up and one.restarts:
            times = "once" if one.restarts == 1 else f"{one.restarts} times"
            yield broken(
                "node", f"{one.id} is down: its worker ended {times}. The daemon's log and the events say why."
            )
        elif not one.up:
            yield slow("node", f"{one.id} is not up yet: its worker starts. The daemon's log says more.")
        if one.draining:
            yield slow(
                "node", f"{one.id} is drained: nothing new goes there. `llmhostd drain {one.id} --end` uses it again."
            )


def _check_models(models: Sequence[ModelSnapshot]) -> Iterator[Finding]:
    for one in models:
        if one.state is ModelState.QUARANTINED:
            again = f"`llmhostd models release {one.name}` tries again"
            yield broken("model", f"{one.name} is quarantined: {one.because}. {again}.")
        elif one.because:
            yield broken("model", f"{one.name}: {one.because}.")


def _last_run(said: str, goes_on: str = "") -> Iterator[Finding]:
    """How the run before ended, and what of it goes on."""
    if said:
        yield slow("last run", f"{said}.")
    if goes_on:
        yield good("last run", f"{goes_on}.")
