"""What does each idea, each node and each setting contribute, and how much of it is chance?"""

from collections.abc import Iterator, Sequence

from llmhostd.evaluation.charts import Series, Values, draw_bars, draw_lines, legend
from llmhostd.evaluation.drawing import new_figure
from llmhostd.evaluation.outcomes import (
    Measure,
    Outcomes,
    Section,
    cpus,
    gap_p99_s,
    gpus,
    slo_percent,
    values,
)
from llmhostd.evaluation.parts import (
    BEST_BASELINE,
    CPU_COUNTS,
    KEEP_ALIVES_S,
    NODE_COUNTS,
    NOISE,
    OURS,
    PAPERS,
    RIVALS,
    SEEDED,
    SEEDS,
    WATERMARKS,
    Part,
    ablated,
    kept_alive,
    on_nodes,
    seeded,
    watermarked,
)
from llmhostd.evaluation.published import (
    HALF_THE_NODES,
    KV_SCALING_SHARE,
    MOST_MIGRATED_SHARE,
    WITHOUT_SHARING_SLO_RATE,
)
from llmhostd.simulator.experiment import Experiment
from llmhostd.simulator.outcome import Outcome
from llmhostd.simulator.policies import Ablation
from llmhostd.simulator.seeds import half_width, spread

Panel = tuple[str, Measure]


def ablations(part: Part, outcomes: Outcomes) -> Section:
    """Fig. 23: 64 models of 7B."""
    section = Section(part.name, part.title, part.source, list(_ablation_findings(outcomes)))
    section.figure, (axes,) = new_figure(1, 3, width=12.5, height=3.7)
    names = ["whole", *(f"no {each}" for each in Ablation)]
    for axis, (title, measure, most) in zip(
        axes, (("SLO met, %", slo_percent, 104), ("GPU nodes used", gpus, None), ("CPU nodes used", cpus, None)),
        strict=True,
    ):  # fmt: skip
        published = measure is slo_percent
        series = [
            Series(
                policy, values(outcomes, (ablated(policy, each) for each in (None, *Ablation)), measure),
                paper=(None, 100 * WITHOUT_SHARING_SLO_RATE) if published and policy == PAPERS else (),
            )
            for policy in (PAPERS, OURS)
        ]  # fmt: skip
        draw_bars(axis, names, series, most=most, written=most is not None)
        axis.set_title(title)
        axis.tick_params(axis="x", labelsize=8, rotation=20)
    legend(section.figure, (PAPERS, OURS), paper=True)
    return section


def _ablation_findings(outcomes: Outcomes) -> Iterator[str]:
    for policy in (PAPERS, OURS):
        whole = outcomes.get(ablated(policy, None))
        said = []
        for each in Ablation:
            without = outcomes.get(ablated(policy, each))
            if whole is not None and without is not None:
                points, more = 100 * (without.slo_rate - whole.slo_rate), gpus(without) - gpus(whole)
                said.append(f"{each} {points:+.1f} points and {more:+.2f} GPUs")
        if said:
            yield f"Taken away from {policy}: {'; '.join(said)}."
    if ablated(PAPERS, Ablation.SHARING) in outcomes:
        ours = outcomes[ablated(PAPERS, Ablation.SHARING)].slo_rate
        yield f"Without sharing {PAPERS} meets {ours:.1%} (paper: {WITHOUT_SHARING_SLO_RATE:.0%})."


def nodes(part: Part, outcomes: Outcomes) -> Section:
    """Fig. 32: as many CPU as GPU nodes, 64 models of 7B."""
    section = Section(part.name, part.title, part.source, list(_node_findings(outcomes)))
    panels = (("SLO-met requests", _met), ("Longest gap in a stream, p99, s", gap_p99_s))
    names = [f"{n} + {n}" for n in NODE_COUNTS]
    runs = {policy: [on_nodes(policy, n, n) for n in NODE_COUNTS] for policy in RIVALS}
    _draw_panels(section, outcomes, panels, names, runs, "CPU + GPU nodes")
    return section


def _node_findings(outcomes: Outcomes) -> Iterator[str]:
    half = HALF_THE_NODES // 4
    whole = outcomes.get(on_nodes(BEST_BASELINE, 2 * half, 2 * half))
    for policy in (PAPERS, OURS):
        few = outcomes.get(on_nodes(policy, half, half))
        if few is not None and whole is not None:
            yield (
                f"{policy} on {2 * half} nodes meets {few.slo_met / max(whole.slo_met, 1):.0%} of what {BEST_BASELINE} "
                f"meets on {4 * half}" + (" (paper: as many)." if policy == PAPERS else ".")
            )


def cpu_nodes(part: Part, outcomes: Outcomes) -> Section:
    """Fig. 24: CPU nodes beside two GPUs, 64 models of 7B."""
    section = Section(part.name, part.title, part.source, [])
    panels = (("SLO met, %", slo_percent), ("GPU nodes used", gpus))
    runs = {policy: [on_nodes(policy, n, 2) for n in CPU_COUNTS] for policy in (PAPERS, OURS)}
    _draw_panels(section, outcomes, panels, [str(n) for n in CPU_COUNTS], runs, "CPU nodes, beside 2 GPUs")
    for policy, each in runs.items():
        none, most = outcomes.get(each[0]), outcomes.get(each[-1])
        if none is not None and most is not None:
            section.findings.append(
                f"{CPU_COUNTS[-1]} CPU nodes take {policy} from {none.slo_rate:.1%} to {most.slo_rate:.1%}."
            )
    return section


def keep_alive(part: Part, outcomes: Outcomes) -> Section:
    """Fig. 30: 64 models of 7B."""
    section = Section(part.name, part.title, part.source, [])
    panels = (("SLO met, %", slo_percent), ("TTFT p99, s", _ttft_p99_s), ("GPU nodes used", gpus))
    runs = {policy: [kept_alive(policy, s) for s in KEEP_ALIVES_S] for policy in RIVALS}
    _draw_panels(section, outcomes, panels, [f"{s:g} s" for s in KEEP_ALIVES_S], runs, "keep-alive")
    longest_s = KEEP_ALIVES_S[-1]
    for policy in RIVALS:
        usual, long = outcomes.get(kept_alive(policy, 1.0)), outcomes.get(kept_alive(policy, longest_s))
        if usual is not None and long is not None:
            section.findings.append(
                f"{longest_s:g} s instead of 1 s move {policy} from {usual.slo_rate:.1%} to {long.slo_rate:.1%}, and "
                f"from {gpus(usual):.2f} to {gpus(long):.2f} GPUs."
            )
    return section


def watermark(part: Part, outcomes: Outcomes) -> Section:
    """Fig. 31: 64 models of 7B."""
    section = Section(part.name, part.title, part.source, list(_watermark_findings(outcomes)))
    panels: tuple[Panel, ...] = (
        ("Time in KV scaling, %", lambda one: 100 * one.kv_scaling_share),
        ("KV memory used, %", lambda one: 100 * one.kv_utilization),
        ("Requests moved, %", _moved_percent),
    )
    runs = {PAPERS: [watermarked(PAPERS, mark) for mark in WATERMARKS]}
    told = [100 * share if (share := KV_SCALING_SHARE.get(mark)) is not None else None for mark in WATERMARKS]
    _draw_panels(section, outcomes, panels, [f"{mark:.0%}" for mark in WATERMARKS], runs, "watermark", paper=told)
    return section


def _watermark_findings(outcomes: Outcomes) -> Iterator[str]:
    for mark, theirs in KV_SCALING_SHARE.items():
        found = outcomes.get(watermarked(PAPERS, mark))
        if found is not None:
            yield (
                f"At a watermark of {mark:.0%} {PAPERS} spends {found.kv_scaling_share:.2%} of its instances' lifetime "
                f"on KV scaling (paper: {theirs:.1%}) and moves {_moved_percent(found):.2f} % of the requests "
                f"(paper: at most {MOST_MIGRATED_SHARE:.1%})."
            )


def seeds(part: Part, outcomes: Outcomes) -> Section:
    """Several seeds, with noise on iterations and on profiles."""
    section = Section(part.name, part.title, part.source, [])
    section.figure, (axes,) = new_figure(1, 2, width=12.5, height=3.7)
    groups = [f"{size.upper()} x {n}" for size, n in SEEDED]
    runs = {p: [_runs(outcomes, p, size, n) for size, n in SEEDED] for p in RIVALS}
    for axis, (title, key, scale) in zip(axes, (("SLO met, %", "slo_rate", 100), ("gap", "", 1)), strict=True):
        series = []
        for policy in RIVALS:
            means, halves = zip(*(_interval(one, key) for one in runs[policy]), strict=True)
            series.append(Series(policy, [None if m is None else scale * m for m in means],
                                 half_widths=[None if h is None else scale * h for h in halves]))  # fmt: skip
        draw_bars(axis, groups, series, written=bool(key))
        axis.set_title(title if key else "Longest gap in a stream, p99, s")
    legend(section.figure, RIVALS)
    counts = sorted({len(one) for each in runs.values() for one in each if one})
    many = " to ".join(dict.fromkeys(str(each) for each in (counts[0], counts[-1]))) if counts else str(SEEDS)
    section.findings.append(
        f"{many} seeds a point; iterations and profiles are off by {NOISE:.0%}. Whiskers: 95 % confidence."
    )
    section.findings += _seed_findings(runs)
    return section


def _seed_findings(runs: dict[str, list[list[Outcome]]]) -> Iterator[str]:
    for place, (size, n) in enumerate(SEEDED):
        ours, theirs = runs[OURS][place], runs[PAPERS][place]
        if ours and len(ours) == len(theirs):
            gains = [100 * (a.slo_rate - b.slo_rate) for a, b in zip(ours, theirs, strict=True)]
            mean, half = sum(gains) / len(gains), half_width(gains)
            sure = "surely more" if mean > half else "surely less" if -mean > half else "no sure difference"
            sure = sure if len(gains) > 1 else "one seed, of which nothing is sure"
            yield (
                f"{size.upper()} x {n}: {OURS} keeps {mean:+.2f} ± {half:.2f} points more of its promises than "
                f"{PAPERS}, seed by seed: {sure}."
            )


def _draw_panels(
    section: Section, outcomes: Outcomes, panels: Sequence[Panel], names: Sequence[str],
    runs: dict[str, list[Experiment]], xlabel: str, *, paper: Values = (),
) -> None:  # fmt: skip
    """One line a policy in each panel. `paper`: what it says of the first panel."""
    section.figure, (axes,) = new_figure(1, len(panels), width=12.5, height=3.6)
    for axis, (title, measure) in zip(axes, panels, strict=True):
        told = paper if axis is axes[0] else ()
        series = [Series(policy, values(outcomes, each, measure), paper=told) for policy, each in runs.items()]
        draw_lines(axis, (), series, names=names)
        axis.set(title=title, xlabel=xlabel)
        axis.margins(y=0.1)
        axis.set_ylim(bottom=0)
    legend(section.figure, list(runs), paper=bool(paper))


def _runs(outcomes: Outcomes, policy: str, size: str, models: int) -> list[Outcome]:
    every = (seeded(policy, size, models, seed) for seed in range(SEEDS))
    return [outcomes[each] for each in every if each in outcomes]


def _interval(runs: Sequence[Outcome], key: str) -> tuple[float | None, float | None]:
    """Mean and half width of a figure: of `key`, or of the longest gap."""
    if not runs:
        return None, None
    summed = spread(runs)
    if key:
        return summed.mean[key], summed.half_width_95[key]
    return summed.mean["max_gap_s"]["p99"], summed.half_width_95["max_gap_s"]["p99"]


def _met(outcome: Outcome) -> float:
    return outcome.slo_met


def _ttft_p99_s(outcome: Outcome) -> float:
    return outcome.ttft_s.p99


def _moved_percent(outcome: Outcome) -> float:
    return 100 * outcome.migrations / max(outcome.requests, 1)
