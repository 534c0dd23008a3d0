"""Which experiments does each part of the evaluation have? (SLINFER §IX.)"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import msgspec

from llmhostd.simulator.assumptions import Assumptions, KvGrowth
from llmhostd.simulator.experiment import Experiment
from llmhostd.simulator.policies import Ablation

PROFILES = Path("slinfer_profiles.json")
CONVERSATION = Path("slinfer_azfunc128_azconv.csv.gz")
DATASETS = {
    name: Path(f"slinfer_azfunc128_{name}.csv.gz")
    for name in ("azconv", "azcode", "humaneval", "sharegpt", "longbench")
}
BURSTGPT = {f"burstgpt {rps}/s": Path(f"slinfer_burstgpt64_rps{rps}.csv.gz") for rps in ("0.5", "1", "2")}
REGENERATED = {32: Path("azfunc32_regen_seed0.csv.gz"), 64: Path("azfunc64_regen_seed0.csv.gz"),
               128: Path("azfunc128_regen_seed0.csv.gz")}  # fmt: skip

BASELINES = ("sllm", "sllm+c", "sllm+c+s")
POLICIES = (*BASELINES, "slinfer", "llmhostd")
BEST_BASELINE, PAPERS, OURS = "sllm+c+s", "slinfer", "llmhostd"
RIVALS = (BEST_BASELINE, PAPERS, OURS)
SIZES = ("3b", "7b", "13b")
COUNTS = (32, 64, 128)
MIXES = ((4, 1, 1), (1, 4, 1), (1, 1, 4), (2, 2, 2))
"""Shares of 3B, 7B and 13B (§IX-E, without its 34B models: nobody published their times; §IX-F)."""
SHORT_OF_MEMORY = (("7b", 128), ("13b", 64), ("13b", 128))
"""Where the paper's box is."""
NODE_COUNTS = (1, 2, 3, 4)
CPU_COUNTS = (0, 2, 4, 6, 8)
KEEP_ALIVES_S = (0.5, 1.0, 5.0, 15.0, 60.0)
WATERMARKS = (0.0, 0.1, 0.25, 0.5, 1.0)
SEEDS = 5
NOISE = 0.1


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the evaluation."""

    name: str
    """As it is typed."""
    title: str
    source: str
    """What of the paper it repeats."""
    experiments: tuple[Experiment, ...]
    """Paths are names within the data folder, or absolute."""


def conversation(policy: str, size: str, models: int, **more: object) -> Experiment:
    """One run on the paper's main trace."""
    return Experiment(trace=CONVERSATION, profiles=PROFILES, policy=policy, size=size, models=models, **more)  # type: ignore[arg-type]


def assuming(**changes: object) -> Assumptions:
    """The usual assumptions, but for these."""
    return msgspec.structs.replace(Assumptions(), **changes)


def allocated(policy: str, models: int) -> Experiment:
    """7B, where growing a KV pool allocates the whole of it anew."""
    return conversation(policy, "7b", models, assumptions=assuming(kv_growth=KvGrowth.ALLOCATE))


def in_place(policy: str, size: str, models: int) -> Experiment:
    """Where growing a KV pool costs nothing, as on our engine."""
    return conversation(policy, size, models, assumptions=assuming(kv_growth=KvGrowth.IN_PLACE))


def dataset(name: str, policy: str) -> Experiment:
    """Another length pattern: 64 models of 8B."""
    return Experiment(trace=DATASETS[name], profiles=PROFILES, policy=policy, size="8b", models=64)


def other_trace(trace: Path, policy: str) -> Experiment:
    """Another invocation pattern: 7B, all models of the trace."""
    return Experiment(trace=trace, profiles=PROFILES, policy=policy, size="7b")


def in_stages(policy: str, models: int) -> Experiment:
    """7B, with instances of their own for prefill and decode."""
    return conversation(policy, "7b", models, disaggregated=True)


def ablated(policy: str, ablation: Ablation | None) -> Experiment:
    """64 models of 7B, with one idea taken away."""
    return conversation(policy, "7b", 64, without=(ablation,) if ablation else ())


def mixed(policy: str, shares: Sequence[int]) -> Experiment:
    """Models of several sizes, on 4 CPU and 6 GPU nodes (§IX-E)."""
    mix = tuple(zip(SIZES, shares, strict=True))
    return Experiment(trace=CONVERSATION, profiles=PROFILES, policy=policy, mix=mix, models=64, cluster="4cpu+6gpu")


def on_nodes(policy: str, cpus: int, gpus: int) -> Experiment:
    """64 models of 7B on another cluster."""
    cluster = "+".join(part for part in (f"{cpus}cpu" if cpus else "", f"{gpus}gpu" if gpus else "") if part)
    return conversation(policy, "7b", 64, cluster=cluster)


def kept_alive(policy: str, keep_alive_s: float) -> Experiment:
    """64 models of 7B."""
    return conversation(policy, "7b", 64, assumptions=assuming(keep_alive_s=keep_alive_s))


def watermarked(policy: str, watermark: float) -> Experiment:
    """64 models of 7B."""
    return conversation(policy, "7b", 64, assumptions=assuming(watermark=watermark))


def seeded(policy: str, size: str, models: int, seed: int) -> Experiment:
    """With noise on iterations and profiles."""
    return conversation(policy, size, models, seed=seed, noise=NOISE)


SEEDED = (("7b", 64), ("7b", 128), ("13b", 64), ("13b", 128))


def parts(more_traces: Sequence[Path] = ()) -> dict[str, Part]:
    """All parts by name. `more_traces`: also in the part `traces`."""
    traces = (*BURSTGPT.values(), *REGENERATED.values(), *more_traces)
    made = (
        Part("grid", "Sizes, models, policies", "fig. 22, Table III (aggregated)",
             tuple(conversation(p, s, n) for s, n, p in product(SIZES, COUNTS, POLICIES))),
        Part("growth", "What growing a KV pool costs", "fig. 17",
             tuple(each for n, p in product(COUNTS, POLICIES) for each in (conversation(p, "7b", n), allocated(p, n)))
             + tuple(each for (s, n), p in product(SHORT_OF_MEMORY, (PAPERS, OURS))
                     for each in (conversation(p, s, n), in_place(p, s, n)))),
        Part("apart", "Prefill and decode apart", "Table III", tuple(
            each for n, p in product(COUNTS, RIVALS) for each in (conversation(p, "7b", n), in_stages(p, n))
        )),
        Part("datasets", "Length patterns", "fig. 35", tuple(dataset(d, p) for d, p in product(DATASETS, RIVALS))),
        Part("traces", "Invocation patterns", "fig. 27", tuple(other_trace(t, p) for t, p in product(traces, RIVALS))),
        Part("ablations", "Each idea taken away", "fig. 23",
             tuple(ablated(p, a) for p, a in product((PAPERS, OURS), (None, *Ablation)))),
        Part("mixed", "Models of several sizes", "fig. 26", tuple(mixed(p, m) for m, p in product(MIXES, RIVALS))),
        Part("nodes", "Fewer nodes", "fig. 32", tuple(on_nodes(p, n, n) for n, p in product(NODE_COUNTS, RIVALS))),
        Part("cpus", "CPU nodes beside two GPUs", "fig. 24",
             tuple(on_nodes(p, n, 2) for n, p in product(CPU_COUNTS, (PAPERS, OURS)))),
        Part("keep-alive", "How long idle instances stay", "fig. 30",
             tuple(kept_alive(p, s) for s, p in product(KEEP_ALIVES_S, RIVALS))),
        Part("watermark", "How far KV pools grow ahead", "fig. 31",
             tuple(watermarked(PAPERS, w) for w in WATERMARKS)),
        Part("seeds", "How much of it is chance", "our own",
             tuple(seeded(p, s, n, seed) for (s, n), p, seed in product(SEEDED, RIVALS, range(SEEDS)))),
    )  # fmt: skip
    return {part.name: part for part in made}


def experiments_of(chosen: Sequence[Part]) -> Iterator[Experiment]:
    """Yield every experiment once."""
    yield from dict.fromkeys(each for part in chosen for each in part.experiments)
