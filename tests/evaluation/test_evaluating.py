"""Is each part of the evaluation computed once, kept, resumed and reported beside what was published?"""

import json
from pathlib import Path

import msgspec
import pytest

from llmhostd.domain.errors import OperatorError
from llmhostd.evaluation.computing import Failure, compute, missing_files, name_of, run_with
from llmhostd.evaluation.evaluation_report import MEANING, SECTIONS, write_report
from llmhostd.evaluation.outcomes import Duel
from llmhostd.evaluation.parts import (
    CONVERSATION,
    OURS,
    PAPERS,
    PROFILES,
    WATERMARKS,
    assuming,
    conversation,
    experiments_of,
    other_trace,
    parts,
    watermarked,
)
from llmhostd.evaluation.points import Point, Points, slug
from llmhostd.evaluation.published import KV_SCALING_SHARE, PAPER, REIMPLEMENTED
from llmhostd.simulator.assumptions import Assumptions
from llmhostd.simulator.experiment import Experiment
from llmhostd.simulator.outcome import Outcome, Percentiles, PerKind, TwoPercentiles


def slow(factor: float) -> dict[str, object]:
    """Made-up times of 7B; a GPU's, and those of something `factor` times slower."""
    return {
        "prefill_ms": [[n, factor * (10 + n * 0.15)] for n in (32, 512, 4096)],
        "decode_ms": [
            {"context_tokens": context, "by_batch": [[n, factor * (12 + n * context / 9000)] for n in (1, 16, 64)]}
            for context in (256, 2048)
        ],
    }  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like the artefact's, with one small trace of 128 models."""
    folder = tmp_path_factory.mktemp("data")
    profiles = [
        {"model": "llama-2-7b", "device": kind, "node": node, "sllm_concurrency": 15, "sllm_share_concurrency": 4}
        | slow(factor)
        for kind, node, factor in (("cpu", "xeon-6462c-32c", 6.0), ("gpu", "a100-80g", 1.0))
    ]
    (folder / PROFILES).write_text(json.dumps({"profiles": profiles}))
    rows = [f"{n * 0.08:.2f},{n * 37 % 128},{20 + n * 13 % 900},{5 + n % 60}" for n in range(128)]
    (folder / "trace.csv").write_text("\n".join(["arrival_s,model_id,input_tokens,output_tokens", *rows]))
    return folder


def outcome(policy: str = "slinfer", **more: object) -> Outcome:
    figures = {
        "policy": policy, "size": "7b", "models": 64, "requests": 1000, "slo_met": 900, "slo_rate": 0.9, "dropped": 5,
        "ttft_s": Percentiles(p50=0.1, p90=0.5, p99=1.5), "tpot_s": TwoPercentiles(p50=0.05, p99=0.2),
        "max_gap_s": TwoPercentiles(p50=0.3, p99=1.5), "nodes_used": PerKind(cpu=3.0, gpu=2.0),
        "decode_tokens_per_node_s": PerKind(cpu=30.0, gpu=90.0), "kv_utilization": 0.5, "kv_scaling_share": 0.014,
        "migrations": 3, "cold_starts": 100, "wall_s": 30.0,
    }  # fmt: skip
    return msgspec.convert(figures | more, Outcome)


def point(experiment: Experiment, **more: object) -> Point:
    return Point(experiment=experiment, outcome=outcome(experiment.policy, **more), version="0.1.0", at_unix_s=1.7e9)


SMALL = other_trace(Path("trace.csv"), "slinfer")
WRONG = msgspec.structs.replace(SMALL, size="13b")


def test_experiments_are_run_and_kept_and_a_failure_stops_none(data: Path, tmp_path: Path) -> None:
    points = Points(tmp_path)
    told: list[tuple[str, bool]] = []
    made, failed = compute(
        [WRONG, SMALL], data, points, 1, lambda experiment, found: told.append((experiment.size, found is not None))
    )
    assert sorted(told) == [("13b", False), ("7b", True)]
    assert list(made) == [SMALL]
    assert failed == [Failure(WRONG, "no profile of llama-2-13b on xeon-6462c-32c; models: llama-2-7b")]
    assert made[SMALL].outcome.requests == 128
    again = Points(tmp_path).load([SMALL, WRONG])
    assert again == made
    # What depends on no clock is the same in another process.
    here = run_with(data, SMALL)
    assert msgspec.structs.replace(here, wall_s=0.0) == msgspec.structs.replace(made[SMALL].outcome, wall_s=0.0)


def test_a_point_that_is_none_is_named(tmp_path: Path) -> None:
    points = Points(tmp_path)
    points.file(SMALL).write_text('{"experiment": 1}')
    with pytest.raises(OperatorError, match=r"points/slinfer-7b-all-trace-.*\.json: cannot be read"):
        points.load([SMALL])
    (tmp_path / "file").write_text("")
    with pytest.raises(OperatorError, match="cannot be made"):
        Points(tmp_path / "file" / "out")


def test_no_two_experiments_share_a_name_and_names_outlive_where_the_data_lies() -> None:
    every = list(experiments_of(list(parts().values())))
    assert len({slug(each) for each in every}) == len(every) > 200
    base = conversation("slinfer", "7b", 64)
    moved = msgspec.structs.replace(base, trace=Path("/elsewhere") / CONVERSATION, profiles=Path("/x") / PROFILES)
    assert slug(moved) == slug(base)
    assert slug(watermarked(PAPERS, 0.25)) == slug(base), "the usual value is the usual experiment"
    assert slug(msgspec.structs.replace(base, seed=1)) != slug(base)
    assert slug(msgspec.structs.replace(base, assumptions=assuming(unload_s=0.1))) != slug(base)
    assert name_of(base).startswith("slinfer-7b-64-slinfer_azfunc128_azconv")


def test_what_is_not_in_the_data_folder_is_counted(data: Path) -> None:
    absent = missing_files([SMALL, conversation("sllm", "7b", 32), conversation("slinfer", "7b", 32)], data)
    assert absent == {CONVERSATION: 2}


def test_every_part_is_drawn_even_where_points_are_missing(tmp_path: Path) -> None:
    chosen = list(parts([Path("/data/bursty.csv")]).values())
    assert [part.name for part in chosen] == list(SECTIONS)
    every = list(experiments_of(chosen))
    # Every third is missing, as after an interruption.
    some = {each: point(each) for n, each in enumerate(every) if n % 3}
    page = write_report(tmp_path, chosen, some, [], {})
    text = page.read_text()
    for part in chosen:
        assert f'id="{part.name}"' in text
        assert (tmp_path / f"{part.name}.png").read_bytes().startswith(b"\x89PNG")
    assert "points computed" in text
    assert not any(outside in text for outside in ("<script", "<link", "src=", "@import"))
    assert "nan" not in text.lower().replace("finance", "")


def test_the_report_says_how_we_compare_and_with_what_assumed(tmp_path: Path) -> None:
    grid = parts()["grid"]
    rates = {"sllm": 0.46, "sllm+c": 0.68, "sllm+c+s": 0.664, "slinfer": 0.863, "llmhostd": 0.92}
    made = {
        each: point(each, slo_rate=rates[each.policy], slo_met=int(1000 * rates[each.policy]))
        for each in grid.experiments
    }
    text = write_report(tmp_path, [grid], made, [Failure(SMALL, "no & time")], {Path("gone.csv"): 7}).read_text()
    assert "Of 9 points at which slinfer is under 99%, llmhostd meets more at 9, with no more GPUs" in text
    assert "42% of what slinfer missed is won back (+513 of 1,233 requests)" in text
    assert "slinfer: within two points of the reimplementation" in text
    assert "88% to 88% more requests than sllm (paper: 86% to 154%)" in text
    assert "lets at most 2 s pass at the 99th percentile at 9 of 9 points" in text
    assert "no &amp; time" in text
    assert "gone.csv" in text
    assert "7 experiments need it" in text
    for name, value in msgspec.to_builtins(Assumptions()).items():
        assert name.replace("_", " ") in text
        assert str(value) in text


def test_one_seed_makes_nothing_sure(tmp_path: Path) -> None:
    part = parts()["seeds"]

    def said(seeds: int) -> str:
        made = {
            each: point(each, slo_rate=0.9 + 0.05 * (each.policy == OURS) + each.seed / 1000)
            for each in part.experiments
            if each.seed < seeds
        }
        return write_report(tmp_path, [part], made, [], {}).read_text()

    assert "one seed, of which nothing is sure" in said(1)
    assert "1 seeds a point" in said(1)
    assert "3 seeds a point" in said(3)
    assert (
        "7B x 64: llmhostd keeps +5.00 ± 0.00 points more of its promises than slinfer, seed by seed: surely" in said(3)
    )


def test_a_duel_counts_only_where_the_other_falls_short() -> None:
    fought = Duel()
    fought.meet(outcome(slo_met=1000, slo_rate=1.0), outcome(slo_met=995, slo_rate=0.995))
    assert "nothing to win back" in fought.sentence("a", "b")
    fought.meet(outcome(slo_met=940, slo_rate=0.94), outcome())
    fought.meet(outcome(slo_met=880, slo_rate=0.88, nodes_used={"cpu": 3.0, "gpu": 2.5}), outcome())
    assert (fought.points, fought.won, fought.missed, fought.won_back, fought.more_gpus) == (2, 1, 200, 20, 0.5)
    assert "with at most 0.50 GPUs more; in all, 10% of what b missed is won back" in fought.sentence("a", "b")


def test_published_figures_are_of_points_that_are_computed() -> None:
    computed = {(each.policy, each.size, each.models) for each in parts()["grid"].experiments}
    assert {*PAPER, *REIMPLEMENTED} <= computed
    assert set(KV_SCALING_SHARE) <= set(WATERMARKS)
    assert set(MEANING) <= set(Assumptions.__struct_fields__)
