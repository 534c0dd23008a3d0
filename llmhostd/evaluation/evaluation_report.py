"""How does an evaluation become a report: figures, findings and every assumption, on one page?"""

import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

import msgspec

from llmhostd.evaluation import page
from llmhostd.evaluation.computing import Failure, name_of
from llmhostd.evaluation.drawing import as_svg, style, write, write_png
from llmhostd.evaluation.outcomes import Outcomes, Section, duel
from llmhostd.evaluation.parts import COUNTS, OURS, PAPERS, SIZES, Part, conversation
from llmhostd.evaluation.points import Point
from llmhostd.evaluation.section_apart import apart
from llmhostd.evaluation.section_grid import grid, growth
from llmhostd.evaluation.section_settings import ablations, cpu_nodes, keep_alive, nodes, seeds, watermark
from llmhostd.evaluation.section_traffic import datasets, mixes, traces
from llmhostd.simulator.assumptions import Assumptions
from llmhostd.simulator.experiment import Experiment

REPORT = "report.html"
SECTIONS: dict[str, Callable[[Part, Outcomes], Section]] = {
    "grid": grid, "growth": growth, "apart": apart, "datasets": datasets, "traces": traces,
    "ablations": ablations, "mixed": mixes, "nodes": nodes, "cpus": cpu_nodes, "keep-alive": keep_alive,
    "watermark": watermark, "seeds": seeds,
}  # fmt: skip
"""By the names of parts."""


def write_report(
    out: Path, parts: Sequence[Part], points: Mapping[Experiment, Point], failures: Sequence[Failure],
    absent: Mapping[Path, int], minutes: float | None = None,
) -> Path:  # fmt: skip
    """Write `report.html`, which needs nothing beside it, and a PNG for each part that has any point; returns the page.

    `absent`: files of the data folder that were not there, and how many experiments need each.
    `minutes`: of each trace, as far as it was simulated; None: all.
    Raises OperatorError if a file cannot be written, or matplotlib is missing.
    """
    outcomes = {experiment: point.outcome for experiment, point in points.items()}
    cards: list[str] = []
    drawn: list[Part] = []
    with style():
        for part in parts:
            known = sum(each in outcomes for each in part.experiments)
            if not known:
                continue
            section = SECTIONS[part.name](part, outcomes)
            drawn.append(part)
            cards.append(_card(section, known, len(part.experiments)))
            if section.figure is not None:
                write_png(section.figure, out / f"{part.name}.png")
    links = [(part.name, part.title) for part in drawn] + [("assumptions", "Assumptions")]
    pale = _when(points)
    if minutes is not None:
        pale += f" Only the first {minutes:g} minutes of each trace: nothing here is a figure of the paper's."
    content = [
        page.heading("SLINFER's evaluation, repeated", _lead(outcomes), pale),
        page.links(links), *cards, _assumptions(), *_gaps(failures, absent),
    ]  # fmt: skip
    write(out / REPORT, page.page("llmhostd evaluate", content))
    return out / REPORT


def _card(section: Section, known: int, wanted: int) -> str:
    incomplete = "" if known == wanted else f"; {known} of {wanted} points computed"
    parts = [page.paragraph(f"Repeats {section.source}{incomplete}.", "pale")]
    parts += [page.paragraph(each) for each in section.findings]
    if section.figure is not None:
        parts.append(as_svg(section.figure))
    return page.section(section.name, section.title, [*parts, *section.tables])


def _lead(outcomes: Outcomes) -> str:
    fought = duel(outcomes, [(conversation(OURS, s, n), conversation(PAPERS, s, n)) for s in SIZES for n in COUNTS])
    if fought.points:
        return fought.sentence(OURS, PAPERS)
    return f"{len(outcomes)} experiments, simulated with the deciding code that the daemon runs."


def _when(points: Mapping[Experiment, Point]) -> str:
    if not points:
        return "Nothing was computed."
    versions = ", ".join(sorted({point.version for point in points.values()}))
    days = sorted(time.strftime("%Y-%m-%d", time.localtime(point.at_unix_s)) for point in points.values())
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    return (
        f"{len(points)} experiments, simulated by llmhostd {versions}, {when}. Colours: policies; white diamonds: the "
        "paper; black dots: an independent reimplementation of it and its artefact."
    )


def _assumptions() -> str:
    """Every assumption with its value, and what the paper leaves open of it."""
    values = msgspec.to_builtins(Assumptions())
    rows = [(name.replace("_", " "), str(value), MEANING.get(name, "")) for name, value in values.items()]
    table = page.table(("assumption", "value", "because"), rows, words=3)
    lead = (
        "What the paper and its artefact leave open, or what a simulation must be told; unless a part says otherwise."
    )
    return page.section("assumptions", "Assumptions", [page.paragraph(lead, "pale"), table])


MEANING = {
    "gpu_memory_gib": "of 80 GB, as the artefact uses it",
    "worker_gib": "of a GPU, for the runtime of each worker",
    "gpu_load_bytes_per_s": "7B in 1 s (§IX-A)",
    "cpu_load_s": "models are cached in CPU memory (§IX-A)",
    "kv_growth": "both explain the paper's one measurement, 32 GB to 64 GB in 1.9 s (fig. 17); see the part `growth`",
    "kv_copy_bytes_per_s": "32 GB in 1.9 s",
    "kv_allocate_bytes_per_s": "64 GB in 1.9 s",
    "kv_shrink_bytes_per_s": "32 GB to 16 GB in 0.3 s (fig. 17)",
    "least_kv_tokens": "L_min of eq. 2, for the paper's policy",
    "keep_alive_s": "§IX-A; on a GPU that serves nobody, llmhostd takes a twentieth of it; see the part `keep-alive`",
    "watermark": "§VII-B, for the paper's policy; see the part `watermark`",
    "ttft_tokens_per_s": "TTFT SLO: prompt / 512 s, within the next two bounds (§IX-A)",
    "tpot_s": "mean over the tokens after the first (§IX-A)",
    "ask_again_s": "a refused caller asks again so often until its first token would be late",
    "link_bytes_per_s": "100 Gbit/s (§IX-G)",
}


def _gaps(failures: Sequence[Failure], absent: Mapping[Path, int]) -> list[str]:
    """What is not in the report, and why."""
    rows = [(str(file), "not in the data folder", f"{count} experiments need it") for file, count in absent.items()]
    rows += [(name_of(one.experiment), "failed", one.why) for one in failures]
    if not rows:
        return []
    table = page.table(("what", "why", "more"), rows, words=3)
    return [page.section("missing", escape("What is missing"), [table])]
