"""How are profiles measured where a person can watch: in this process, or in the daemon?"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from llmhostd.cli.daemon_client import DaemonClient
from llmhostd.cli.terminal import aside
from llmhostd.compute.estimator import ProfiledEstimator
from llmhostd.config import Config
from llmhostd.daemon.nodes import node_layout
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.model import ModelSpec, ModelState
from llmhostd.domain.profile import Profile
from llmhostd.domain.snapshot import ModelSnapshot, NodeSnapshot
from llmhostd.worker.alone import load_alone, measure_alone
from llmhostd.worker.hosted import Hosted
from llmhostd.worker.verify import Deviation, random_loads, verify

LOOK_EVERY_S = 0.3


def measure_here(config: Config, spec: ModelSpec, path: Path) -> tuple[Hosted, Profile]:
    """Load and measure a model on the first node; it stays loaded."""
    node = node_layout(config.nodes, config.devices, config.machine_memory).nodes[0]
    with _bars() as bars:
        bar = bars.add_task(f"{spec.name}: loading", total=None)
        hosted = load_alone(node, spec, path)
        bars.update(bar, description=f"{spec.name}: measuring")
        profile = measure_alone(hosted, node, lambda done, total: bars.update(bar, completed=done, total=total))
    return hosted, profile


def verify_here(config: Config, spec: ModelSpec, path: Path, each: int, seed: int) -> tuple[Profile, list[Deviation]]:
    """Measure a fresh profile, then run `each` random loads of every kind against its predictions."""
    hosted, profile = measure_here(config, spec, path)
    loads = random_loads(seed, each, spec.shape.architecture.max_context_tokens)
    with _bars() as bars:
        bar = bars.add_task(f"{spec.name}: verifying", total=2 * len(loads))
        deviations = verify(hosted.running, ProfiledEstimator(profile), loads, lambda: bars.advance(bar))
    hosted.take_apart(hosted.state).unload()
    return profile, deviations


def measure_there(daemon: DaemonClient, names: Sequence[str]) -> None:
    """Have the daemon measure models again, in the gaps of serving; it loads those that are not loaded."""
    before = {name: one.measured for name, one in _models(daemon).items()}
    for name in names:
        daemon.post(f"/api/v1/models/{name}/measure", {}, object)
    with _bars() as bars:
        tasks = {name: bars.add_task(f"{name}: waiting", total=None) for name in dict.fromkeys(names)}
        while tasks:
            time.sleep(LOOK_EVERY_S)
            models = _models(daemon)
            for name in list(tasks):
                if _measured(models.get(name), before[name]):
                    bars.update(tasks.pop(name), description=f"{name}: measured", completed=1, total=1)
                elif models[name].state is ModelState.LOADING:
                    bars.update(tasks[name], description=f"{name}: loading")
            for node in daemon.get("/api/v1/nodes", tuple[NodeSnapshot, ...]):
                name, _, progress = node.profiling.partition(" ")
                if name in tasks and "/" in progress:
                    done, total = progress.split("/")
                    bars.update(tasks[name], description=f"{name}: measuring", completed=int(done), total=int(total))


def _models(daemon: DaemonClient) -> dict[str, ModelSnapshot]:
    return {str(one.name): one for one in daemon.get("/api/v1/models", tuple[ModelSnapshot, ...])}


def _measured(model: ModelSnapshot | None, before: int) -> bool:
    """Raises OperatorError if it will never be measured."""
    if model is None:
        raise OperatorError("the model was removed meanwhile")
    if model.because:
        raise OperatorError(f"{model.name} cannot be measured: {model.because}")
    return model.measured > before


@contextmanager
def _bars() -> Iterator[Progress]:
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=aside(),
    ) as bars:  # fmt: skip
        yield bars
