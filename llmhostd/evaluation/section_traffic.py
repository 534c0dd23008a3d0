"""What do other lengths, other arrivals and models of several sizes change?"""

from collections.abc import Sequence
from textwrap import fill

from llmhostd.evaluation.charts import Series, draw_bars, legend
from llmhostd.evaluation.drawing import new_figure
from llmhostd.evaluation.outcomes import (
    Outcomes,
    Section,
    cpus,
    duel,
    gap_p99_s,
    gap_sentence,
    gpus,
    slo_percent,
    values,
)
from llmhostd.evaluation.parts import (
    BEST_BASELINE,
    DATASETS,
    MIXES,
    OURS,
    PAPERS,
    RIVALS,
    Part,
    dataset,
    mixed,
)
from llmhostd.evaluation.published import LONGBENCH_MISSED_BY_HALVES
from llmhostd.simulator.experiment import Experiment

NAME_WIDTH = 10
"""Letters below one of nine groups of bars."""


def datasets(part: Part, outcomes: Outcomes) -> Section:
    """Fig. 35: 64 models of 8B on other datasets' lengths."""
    section = _rivals(part, outcomes, {name: [dataset(name, policy) for policy in RIVALS] for name in DATASETS})
    longbench = outcomes.get(dataset("longbench", BEST_BASELINE))
    if longbench is not None:
        section.findings.append(
            f"On LongBench {BEST_BASELINE} misses {1 - longbench.slo_rate:.1%} of the SLOs "
            f"(paper: {LONGBENCH_MISSED_BY_HALVES:.1%}): CPUs cannot serve prompts that long in time."
        )
    return section


def traces(part: Part, outcomes: Outcomes) -> Section:
    """Fig. 27 and more: 7B on other traces."""
    by_trace: dict[str, list[Experiment]] = {}
    for each in part.experiments:
        by_trace.setdefault(_trace_name(each), []).append(each)
    return _rivals(part, outcomes, by_trace)


def mixes(part: Part, outcomes: Outcomes) -> Section:
    """Fig. 26: 64 models of 3B, 7B and 13B on 4 CPU and 6 GPU nodes."""
    groups = {":".join(map(str, shares)): [mixed(policy, shares) for policy in RIVALS] for shares in MIXES}
    section = _rivals(part, outcomes, groups)
    saved = [
        f"{name}: {gpus(outcomes[ours]):.2f} against {gpus(outcomes[theirs]):.2f}"
        for name, (theirs, ours, _) in groups.items()
        if ours in outcomes and theirs in outcomes
    ]
    if saved:
        section.findings.append(f"GPUs that {PAPERS} uses, against {BEST_BASELINE}, by 3B:7B:13B: {'; '.join(saved)}.")
    return section


def _rivals(part: Part, outcomes: Outcomes, groups: dict[str, list[Experiment]]) -> Section:
    """The three rivals on several loads: promises, nodes, stalls."""
    ours = [each for group in groups.values() for each in group if each.policy == OURS]
    theirs = [each for group in groups.values() for each in group if each.policy == PAPERS]
    findings = [duel(outcomes, zip(ours, theirs, strict=True)).sentence(OURS, PAPERS), gap_sentence(outcomes, ours)]
    section = Section(part.name, part.title, part.source, [each for each in findings if each])
    section.figure, axes = new_figure(2, 2, width=12.5, height=6.6)
    shown = [policy for policy in RIVALS if any(each in outcomes for each in _of_policy(groups, policy))]
    panels = (("SLO met, %", slo_percent, 104), ("Longest gap in a stream, p99, s", gap_p99_s, None),
              ("GPU nodes used", gpus, None), ("CPU nodes used", cpus, None))  # fmt: skip
    for place, (title, measure, most) in enumerate(panels):
        axis = axes[place // 2][place % 2]
        draw_bars(axis, list(groups), [
            Series(policy, values(outcomes, _of_policy(groups, policy), measure)) for policy in shown
        ], most=most, written=most is not None)  # fmt: skip
        axis.set_title(title)
    legend(section.figure, shown)
    return section


def _of_policy(groups: dict[str, list[Experiment]], policy: str) -> Sequence[Experiment]:
    return [each for group in groups.values() for each in group if each.policy == policy]


def _trace_name(experiment: Experiment) -> str:
    """Short enough to stand below a bar."""
    name = experiment.trace.name.partition(".csv")[0].removeprefix("slinfer_")
    name = name.replace("burstgpt64_rps", "burst ").replace("_seed0", "").replace("azfunc", "azure ")
    return fill(name.replace("_", " "), NAME_WIDTH)
