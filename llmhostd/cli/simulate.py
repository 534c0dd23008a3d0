"""How does a person ask what a box would do with a load?"""

from pathlib import Path

import click
import msgspec

from llmhostd.bench.schedule import Lengths
from llmhostd.cli.experiments import experiment_options, run_experiment
from llmhostd.cli.option_types import BurstOption, LengthsOption, refuse_given
from llmhostd.cli.root import example
from llmhostd.cli.terminal import aside
from llmhostd.daemon.node_memory import parse_bytes
from llmhostd.simulator.assumptions import SIZES as PUBLISHED
from llmhostd.simulator.box import SIZES
from llmhostd.simulator.faults import Faults
from llmhostd.simulator.policies import Ablation
from llmhostd.simulator.replay import simulate as run_simulation
from llmhostd.simulator.report import as_text

POSITIVE = click.FloatRange(min=0, min_open=True)
SHARE = click.FloatRange(0, 1)
_MADE_UP = (
    "box", "nodes", "memory", "rate", "burst", "duration", "requests", "zipf", "input_tokens", "output_tokens",
    "best_effort", "death_every",
)  # fmt: skip
_OF_EXPERIMENTS = ("cluster", "policy", "without", "disaggregated", "mix", "seeds", "assume")


@click.command(
    epilog=example(
        "simulate --models 32 --size 160m --size 500m --rate 6 --requests 10000",
        "simulate --trace azure.csv.gz --models 32 --nodes 2 --memory 64GiB",
        "simulate --rate 6 --burst 2,8 --best-effort 0.3 --seed 7",
        "simulate --trace azure.csv.gz --profiles a100.json --cluster 4cpu+4gpu --policy slinfer --size 7b --models 64",
    )
)
@click.option("--trace", type=click.Path(path_type=Path), help="Arrivals from a CSV file, as for `bench`.")
@click.option(
    "--box", type=click.Path(path_type=Path), help="Nodes, models and profiles (JSON) instead of made-up ones."
)
@click.option(
    "--models",
    type=click.IntRange(min=1),
    help="Models: made-up ones, or so many of the trace's.  [default: 8, or all of the trace]",
)
@click.option("--size", "sizes", type=click.Choice([*SIZES, *PUBLISHED]), multiple=True, help="Their sizes, in turn.  "
              "[default: 160m, or 7b with --profiles]")  # fmt: skip
@click.option("--nodes", type=click.IntRange(min=1), default=1, help="Made-up nodes.", show_default=True)
@click.option("--memory", default="16 GiB", help="What each of them may hold.", show_default=True)
@click.option("--rate", type=POSITIVE, default=3.0, help="Requests per second, without a trace.", show_default=True)
@click.option("--burst", type=BurstOption(), help="In bursts of so many seconds, with silences between.")
@click.option("--duration", type=POSITIVE, help="Seconds of arrivals.  [default: 60, or the whole trace]")
@click.option("--requests", type=click.IntRange(min=1), help="Stop after so many requests.")
@click.option("--zipf", type=click.FloatRange(min=0), default=1.0, help="Skew of the models' popularity.",
              show_default=True)  # fmt: skip
@click.option("--input-tokens", type=LengthsOption(), default="140", help="Prompt length.", show_default=True)
@click.option("--output-tokens", type=LengthsOption(), default="30", help="Output length.", show_default=True)
@click.option("--best-effort", type=SHARE, default=0.0, help="Share of requests that nobody waits for.",
              show_default=True)  # fmt: skip
@click.option("--noise", type=click.FloatRange(min=0), default=0.0, help="How much iterations vary, and how wrong "
              "published profiles are (deviation of the logarithm).", show_default=True)  # fmt: skip
@click.option("--death-every", type=click.FloatRange(min=0), default=0.0, help="A worker dies so often, in seconds on "
              "average; 0: never.", show_default=True)  # fmt: skip
@click.option("--seed", type=int, default=0, help="The same arrivals, lengths and faults.", show_default=True)
@experiment_options
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def simulate(
    trace: Path | None, box: Path | None, models: int | None, sizes: tuple[str, ...], nodes: int, memory: str,
    rate: float, burst: tuple[float, float] | None, duration: float | None, requests: int | None, zipf: float,
    input_tokens: Lengths, output_tokens: Lengths, best_effort: float, noise: float, death_every: float, seed: int,
    as_json: bool, profiles: Path | None, cluster: str, policy: str, without: tuple[str, ...],
    disaggregated: bool, mix: tuple[tuple[str, int], ...] | None, seeds: int, assume: tuple[tuple[str, str], ...],
) -> None:  # fmt: skip
    """Replay a trace through the same decisions without hardware.

    Iterations take the time that profiles say. The same seed gives the same decisions, on any machine.
    """
    if profiles is not None:
        refuse_given(_MADE_UP, "is of made-up loads and boxes: leave it out, or leave out --profiles")
        with aside().status("simulating"):
            said = run_experiment(
                trace=trace, profiles=profiles, sizes=sizes, models=models, seeds=seeds, as_json=as_json,
                assumed=assume, cluster=cluster, policy=policy, without=tuple(Ablation(each) for each in without),
                disaggregated=disaggregated, mix=mix or (), noise=noise, seed=seed,
            )  # fmt: skip
        click.echo(said)
        return
    refuse_given(_OF_EXPERIMENTS, "needs --profiles: it is of experiments on published times")
    with aside().status("simulating"):
        report = run_simulation(
            trace=trace, box=box, models=models or 8, sizes=sizes or ("160m",), nodes=nodes,
            memory_bytes=parse_bytes(memory, "--memory"),
            requests=requests, duration_s=duration, rate=rate, burst=burst, zipf=zipf,
            input_tokens=(input_tokens.first, input_tokens.last),
            output_tokens=(output_tokens.first, output_tokens.last), best_effort_share=best_effort, noise=noise,
            faults=Faults(death_every_s=death_every), seed=seed,
        )  # fmt: skip
    click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2) if as_json else as_text(report))
