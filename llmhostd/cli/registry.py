"""How does a command change which models there are?

Through the daemon when it runs, for it alone may then change its state; otherwise in the state directory itself.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from sqlite_utils import Database

from llmhostd.api.nearest import nearest
from llmhostd.api.service import ModelRegistration
from llmhostd.cli.daemon_client import DaemonClient, config_of, daemon_if_running, state_dir_of
from llmhostd.cli.root import Place
from llmhostd.daemon.adapter_registration import check_room
from llmhostd.daemon.models import check_no_adapters
from llmhostd.daemon.nodes import has_bf16, node_layout
from llmhostd.daemon.precisions import check_precisions
from llmhostd.daemon.registration import examine
from llmhostd.domain.errors import OperatorError, UnknownModelError
from llmhostd.domain.ids import ModelName
from llmhostd.domain.model import ModelSpec
from llmhostd.domain.snapshot import ModelSnapshot
from llmhostd.state.database import DATABASE_FILE, open_database
from llmhostd.state.families import specs_of
from llmhostd.state.lock import LOCK_FILE, own_state
from llmhostd.state.models import ModelTable, RegisteredModel, spec_of

_PATIENCE_S, _QUIET_S, _RETRY_S = 10.0, 1.0, 0.1


def register(place: Place, registration: ModelRegistration) -> None:
    """Add a model, or replace the one of that name."""
    with _owner(place) as owner:
        if isinstance(owner, DaemonClient):
            owner.post("/api/v1/models", registration, ModelSnapshot)
            return
        table = ModelTable(open_database(owner))
        model = examine(registration, table.all())
        check_servable(place, model)
        table.put(model)


@contextlib.contextmanager
def _owner(place: Place) -> Iterator[DaemonClient | Path]:
    """Whoever may change the state now: the daemon that runs, or else we, and then its directory.

    Another command that changes it, or a daemon that begins, is waited for. Raises OperatorError when that takes long.
    """
    began_s, said = time.monotonic(), False
    while True:
        with daemon_if_running(place) as daemon, contextlib.ExitStack() as held:
            if daemon is None:
                try:
                    held.enter_context(own_state(state_dir_of(place)))
                except OperatorError as error:
                    waited_s = time.monotonic() - began_s
                    if waited_s > _PATIENCE_S or not (state_dir_of(place) / LOCK_FILE).exists():
                        raise
                    if waited_s > _QUIET_S and not said:
                        click.echo(f"{error}; waiting for it up to {_PATIENCE_S:.0f} s", err=True)
                        said = True
                    time.sleep(_RETRY_S)
                    continue
            yield daemon or state_dir_of(place)
            return


def check_servable(place: Place, model: RegisteredModel) -> None:
    """Raises CallerError naming the field if no node of this configuration could ever load the model."""
    config = config_of(place)
    nodes = node_layout(config.nodes, config.devices, config.machine_memory).nodes
    check_room(model, nodes, config.adapters)
    spec = spec_of(model, config.slo, config.precision, bf16_hardware=has_bf16())
    check_precisions(spec.shape, nodes)


def specs(place: Place) -> dict[ModelName, ModelSpec]:
    """Say what the registered models are under this configuration."""
    config = config_of(place)
    slo, precision, adapters = config.slo, config.precision, config.adapters
    return specs_of(registered(place), slo, precision, adapters, bf16_hardware=has_bf16())


def remove(place: Place, name: str) -> None:
    """Forget a model; its files stay. Raises UnknownModelError with the nearest name, CallerError for a base."""
    with _owner(place) as owner:
        if isinstance(owner, DaemonClient):
            owner.delete(f"/api/v1/models/{name}")
            return
        table = ModelTable(open_database(owner))
        check_no_adapters(ModelName(name), table.all())
        if not table.remove(ModelName(name)):
            raise unknown_model(name, [one.name for one in table.all()])


def registered(place: Place) -> list[RegisteredModel]:
    """What the state directory knows, read without disturbing a daemon."""
    db = existing_database(place)
    return ModelTable(db).all() if db else []


def existing_database(place: Place) -> Database | None:
    """The state's database, or None: looking makes nothing."""
    directory = state_dir_of(place)
    try:
        return open_database(directory) if (directory / DATABASE_FILE).exists() else None
    except PermissionError as error:
        raise OperatorError(f"{directory}: {error.strerror}") from error


def model_names(place: Place) -> list[str]:
    """What callers may ask for."""
    with daemon_if_running(place) as daemon:
        if daemon:
            return [one.name for one in daemon.get("/api/v1/models", tuple[ModelSnapshot, ...])]
    return [one.name for one in registered(place)]


def model_files(place: Place) -> Path:
    """Where models lie that llmhostd itself made or fetched."""
    return state_dir_of(place) / "models"


def unknown_model(name: str, known: Iterable[str]) -> UnknownModelError:
    """An error that names the nearest one."""
    return UnknownModelError(
        f"there is no model {name!r}{nearest(name, known) or '; there are none yet'}", field="model"
    )
