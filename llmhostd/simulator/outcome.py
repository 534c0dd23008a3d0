"""What came out of an experiment?"""

from collections.abc import Sequence

import numpy as np

from llmhostd.domain.hardware import NodeKind
from llmhostd.domain.words import Word
from llmhostd.simulator.report import Observation
from llmhostd.simulator.world import World


class Percentiles(Word):
    """Of seconds."""

    p50: float
    p90: float
    p99: float


class TwoPercentiles(Word):
    """Of seconds."""

    p50: float
    p99: float


class PerKind(Word):
    """One figure for CPU nodes and one for GPU nodes."""

    cpu: float
    gpu: float


class Outcome(Word):
    """One run."""

    policy: str
    size: str
    models: int
    requests: int
    slo_met: int
    """Requests with the first token within the TTFT SLO (and a cold start's grace) and a mean TPOT within its SLO."""
    slo_rate: float
    """Of all requests."""
    dropped: int
    """Requests that never got a place in time."""
    ttft_s: Percentiles
    """Of requests that were served."""
    tpot_s: TwoPercentiles
    """Mean over each served request's tokens after the first."""
    max_gap_s: TwoPercentiles
    """Longest wait between two tokens of one stream."""
    nodes_used: PerKind
    """Nodes with at least one instance, on average over the time of arrivals."""
    decode_tokens_per_node_s: PerKind
    """Tokens after the first, per second of a used node."""
    kv_utilization: float
    """Share of allocated KV memory that holds tokens, averaged over the bytes and the time they were allocated."""
    kv_scaling_share: float
    """Share of the instances' lifetime that their KV pools were being resized."""
    migrations: int
    """Requests that lost their place and moved as their tokens."""
    cold_starts: int
    """Instances loaded."""
    wall_s: float
    """Processor seconds that the simulation took."""
    slo_rate_by_eq1: float | None = None
    """The same, if an early first token may be paid back by slow later ones (SLINFER eq. 1); None: not told."""


def outcome_of(world: World, *, policy: str, size: str, models: int, wall_s: float) -> Outcome:
    """Sum up what callers saw and what it took."""
    meter = world.meter
    seen = list(world.callers.observations.values())
    served = [each for each in seen if each.token_s]
    met = sum(each.met for each in seen)
    return Outcome(
        policy=policy,
        size=size,
        models=models,
        requests=len(seen),
        slo_met=met,
        slo_rate=met / max(len(seen), 1),
        dropped=sum(each.refused is not None for each in seen),
        ttft_s=Percentiles(**_percentiles([each.ttft_s for each in served], (50, 90, 99))),
        tpot_s=TwoPercentiles(**_percentiles([each.tpot_s for each in served if len(each.token_s) > 1], (50, 99))),
        max_gap_s=TwoPercentiles(**_percentiles([_longest_gap_s(each) for each in served], (50, 99))),
        nodes_used=PerKind(cpu=meter.nodes_used(NodeKind.CPU), gpu=meter.nodes_used(NodeKind.GPU)),
        decode_tokens_per_node_s=PerKind(
            cpu=meter.decode_tokens_per_node_s(NodeKind.CPU), gpu=meter.decode_tokens_per_node_s(NodeKind.GPU)
        ),
        kv_utilization=meter.kv_utilization,
        kv_scaling_share=meter.kv_scaling_share,
        migrations=world.callers.moves,
        cold_starts=meter.cold_starts,
        wall_s=wall_s,
        slo_rate_by_eq1=sum(each.met_by_eq1 for each in seen) / max(len(seen), 1),
    )


def as_text(outcome: Outcome) -> str:
    """Draw it for a terminal."""
    ttft, tpot, gap, used = outcome.ttft_s, outcome.tpot_s, outcome.max_gap_s, outcome.nodes_used
    speed = outcome.decode_tokens_per_node_s
    rows = [
        ("policy", f"{outcome.policy}, {outcome.models} models of {outcome.size}"),
        ("SLO met", f"{outcome.slo_rate:.2%}: {outcome.slo_met} of {outcome.requests}; {outcome.dropped} dropped"),
        ("TTFT", f"p50 {ttft.p50:.2f} s  p90 {ttft.p90:.2f} s  p99 {ttft.p99:.2f} s"),
        ("TPOT", f"p50 {tpot.p50 * 1000:.0f} ms  p99 {tpot.p99 * 1000:.0f} ms"),
        ("longest gap", f"p50 {gap.p50:.2f} s  p99 {gap.p99:.2f} s"),
        ("nodes used", f"{used.cpu:.2f} CPU, {used.gpu:.2f} GPU"),
        ("decode", f"{speed.cpu:.0f} tokens/s per CPU node, {speed.gpu:.0f} per GPU"),
        ("KV", f"{outcome.kv_utilization:.0%} of it used; {outcome.kv_scaling_share:.2%} of the time resized"),
        ("effort", f"{outcome.cold_starts:.0f} cold starts, {outcome.migrations:.0f} migrations"),
        ("simulated in", f"{outcome.wall_s:.1f} s"),
    ]
    return "\n".join(f"{name:<12} {value}" for name, value in rows)


def _longest_gap_s(one: Observation) -> float:
    return max((b - a for a, b in zip(one.token_s, one.token_s[1:], strict=False)), default=0.0)


def _percentiles(values: Sequence[float], which: tuple[int, ...]) -> dict[str, float]:
    """By name; 0 where there is nothing to measure."""
    found = np.percentile(values, which) if values else [0.0] * len(which)
    return {f"p{percent}": float(value) for percent, value in zip(which, found, strict=True)}
