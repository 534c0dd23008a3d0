"""Which box is a plan about, and whose requests does it serve?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import merge
from pathlib import Path

from llmhostd.bench.load import Load, schedule
from llmhostd.bench.schedule import PlannedRequest, Stream, gamma_arrivals, lengths
from llmhostd.config import Config
from llmhostd.domain.errors import CallerError, OperatorError
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import ModelName
from llmhostd.domain.model import ModelSpec, Slo
from llmhostd.domain.profile import Profile
from llmhostd.evaluation.question import Question
from llmhostd.host.families import shape_on
from llmhostd.simulator.assumptions import Assumptions
from llmhostd.simulator.box import Box, complete
from llmhostd.simulator.chance import Chance, Purpose
from llmhostd.simulator.cluster import read_cluster
from llmhostd.simulator.contenders import Field, contender
from llmhostd.simulator.device import Physics
from llmhostd.simulator.policies import Policies, elastic
from llmhostd.simulator.population import shape_of
from llmhostd.simulator.published_profiles import read_published
from llmhostd.simulator.roofline import Roofline
from llmhostd.simulator.workload import requests_of

OURS = "llmhostd"


def on_this_box(
    config: Config, nodes: Sequence[NodeSpec], models: Sequence[ModelSpec], profiles: Sequence[Profile], seed: int
) -> tuple[Question, tuple[str, ...]]:
    """Ask about these nodes and models under this configuration; without requests yet.

    Also returns the models that were never measured on some node: their times are estimates.
    """
    box = Box(nodes=tuple(nodes), models=tuple(models), profiles=tuple(profiles))
    policies = Policies(
        host=config.host_policies(), scheduling=config.scheduling, kv_demand=config.kv_demand,
        watermark=config.watermark, correction=config.correction, runtime_per_node=True,
    )  # fmt: skip
    measured = {(each.shape_key, each.hardware_key) for each in profiles}
    guessed = [
        str(model.name)
        for model in models
        if any((shape_on(node, model).key, node.hardware_key) not in measured for node in nodes)
    ]
    question = Question(box=complete(box, Roofline()), requests=(), policies=policies, physics=Physics(), seed=seed)
    return question, tuple(guessed)


def on_cluster(cluster: str, profiles: Path, size: str, models: int, slo: Slo, seed: int) -> Question:
    """Ask about `models` models of a published size on a cluster (`4cpu+4gpu`, or a file), decided by our defaults.

    Without requests yet. Raises OperatorError naming the file or the option.
    """
    assumptions = Assumptions()
    specs = [ModelSpec(name=ModelName(f"{size}-{n}"), shape=shape_of(size), slo=slo) for n in range(models)]
    field = Field(specs, read_cluster(cluster, assumptions), read_published(profiles), assumptions)
    ready = contender(OURS, (), field)
    box = Box(nodes=ready.nodes, models=tuple(specs), profiles=ready.profiles)
    return Question(
        box=box, requests=(), policies=elastic(OURS, assumptions, ()), physics=ready.physics, seed=seed
    )  # fmt: skip


def planned(load: Load, models: Sequence[ModelSpec], rates: Mapping[str, float]) -> list[PlannedRequest]:
    """Schedule the load: of a trace, of one rate for all, or of a rate for each model.

    Raises CallerError for a rate of a model that is not there, and OperatorError for a trace that cannot be read.
    """
    names = [str(model.name) for model in models]
    for name in rates:
        if name not in names:
            raise CallerError(f"--rate {name}: there is no such model; there are: {', '.join(names)}", field="rate")
    rows = list(_by_rates(load, rates)) if rates else schedule(load, names)
    strangers = sorted({row.model for row in rows} - set(names))
    if strangers:
        raise OperatorError(f"{load.trace}: asks for {strangers[0]!r}; there are: {', '.join(names)}")
    if not rows:
        raise OperatorError("nobody asks for anything: the trace, or the time it is looked at, is empty")
    return rows


def asked(question: Question, rows: Sequence[PlannedRequest]) -> Question:
    """The question, with these requests."""
    chance = Chance(question.seed, Purpose.TIERS)
    requests = requests_of(sorted(rows, key=lambda row: row.due_s), question.box.models, chance=chance)
    return replace(question, requests=requests)


def _by_rates(load: Load, rates: Mapping[str, float]) -> Iterator[PlannedRequest]:
    """Poisson arrivals of each model on its own, in order."""
    duration_s = load.duration_s or 0.0
    streams = [_of_model(load, name, rate, number) for number, (name, rate) in enumerate(rates.items()) if rate]
    for row in merge(*streams, key=lambda row: row.due_s):
        if row.due_s >= duration_s:
            return
        yield row


def _of_model(load: Load, name: str, rate: float, number: int) -> Iterator[PlannedRequest]:
    seed = load.seed * 1_000_003 + number
    inputs = lengths(seed, Stream.INPUTS, load.input_tokens)
    outputs = lengths(seed, Stream.OUTPUTS, load.output_tokens)
    for due_s, wanted_in, wanted_out in zip(gamma_arrivals(seed, rate, load.cv), inputs, outputs, strict=False):
        yield PlannedRequest(due_s=due_s, model=name, input_tokens=wanted_in, output_tokens=wanted_out)
