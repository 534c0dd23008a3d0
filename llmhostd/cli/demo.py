"""How does a newcomer get models without a download?"""

import click

from llmhostd.api.service import ModelRegistration
from llmhostd.cli.registry import model_files, model_names, register
from llmhostd.cli.root import Place, example
from llmhostd.demo.catalog import DEMO_MODELS
from llmhostd.demo.models import make_demo_models
from llmhostd.domain.errors import CallerError
from llmhostd.loader.progress import drawn_progress


@click.command(epilog=example("demo-models", "demo-models demo-prose-llama demo-prose-qwen3"))
@click.argument("names", nargs=-1)
@click.pass_obj
def demo_models(place: Place, /, names: tuple[str, ...]) -> None:
    """Make small models of several families, without a download.

    All of them, or those of NAMES. What exists already is left as it is.
    """
    if place.url:
        raise CallerError("demo-models works on the daemon's own machine only: leave out --url", field="url")
    with drawn_progress() as draw:
        paths = make_demo_models(model_files(place), names or None, draw)
    known = model_names(place)
    about = {one.name: one.about for one in DEMO_MODELS}
    for path in paths:
        if path.name not in known:
            register(place, ModelRegistration(name=path.name, path=str(path), source="demo"))
        click.echo(f"{path.name}: {about[path.name]}")
