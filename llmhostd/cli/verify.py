"""Are the weights of models what they were when they were added?"""

from functools import partial
from pathlib import Path

import click

from llmhostd.cli.registry import registered, unknown_model
from llmhostd.cli.root import Place, example
from llmhostd.cli.terminal import NO_MODELS
from llmhostd.domain.errors import CheckpointError
from llmhostd.loader.adapter import verify_adapter
from llmhostd.loader.plain_file import readable
from llmhostd.loader.progress import Progress, drawn_progress
from llmhostd.loader.store_index import arrives, is_store
from llmhostd.loader.verify import verify as verify_store
from llmhostd.state.models import RegisteredModel


@click.command(
    short_help="Hold weights against their checksums.", epilog=example("models verify qwen3-0.6b", "models verify")
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.pass_obj
def verify(place: Place, /, names: tuple[str, ...]) -> int:
    """Read the weights of models (all by default) and hold them against their checksums."""
    known = {str(one.name): one for one in registered(place)}
    for name in names:
        if name not in known:
            raise unknown_model(name, known)
    chosen = [one for name, one in known.items() if name in names or (not names and _has_checksums(one))]
    with drawn_progress() as draw:
        found = [(one.name, _damage(one, draw)) for one in chosen]
    for name, damage in found:
        click.echo(f"llmhostd: {damage}" if damage else f"{name} is whole", err=bool(damage))
    if not known:
        click.echo(NO_MODELS)
    elif not names and len(chosen) < len(known):
        click.echo(
            f"served as they came, or not here yet, so not checked: {', '.join(sorted(known.keys() - dict(found)))}",
            err=True,
        )
    return int(any(damage for _, damage in found))


def _damage(one: RegisteredModel, draw: Progress) -> str:
    """Say what is wrong with a model's weights; nothing if they are whole."""
    path = Path(one.path)
    try:
        with readable(path):
            if one.adapter:
                verify_adapter(path, one.shape.architecture, one.adapter.identity)
            else:
                verify_store(path, partial(draw, one.name))
    except CheckpointError as error:
        return str(error)
    return ""


def _has_checksums(one: RegisteredModel) -> bool:
    """Whether it has checksums, or should have."""
    path = Path(one.path)
    try:
        return one.adapter is not None or not path.is_dir() or (is_store(path) and not arrives(path))
    except OSError:
        return True  # why it cannot be looked into is said with the others
