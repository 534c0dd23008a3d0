"""Does a box keep its promises under bursts? Eight models of 156M on all cores, TTFT 2 s, TPOT 0.2 s."""

from pathlib import Path
from typing import Any

import pytest
from box import box, checkpoints, load

SECONDS = 90
SHAPE = ("--burst", "4,6", "--zipf", "1.0", "--input-tokens", "100-180", "--output-tokens", "20-40")


def test_slo_attainment_of_eight_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = checkpoints(8)
    names = [path.name for path in models]
    with box(tmp_path / "state", models) as here:
        load(here, names, tmp_path / "warm.json", "--rate", "2", "--duration", "10", *SHAPE)
        here.settle()
        rows = []
        for rate in (3, 6):
            got = load(here, names, tmp_path / f"{rate}.json", "--rate", str(rate), "--duration", str(SECONDS), *SHAPE)
            refusal = got["time_to_refusal"]
            rows.append(
                f"{rate} req/s, bursty: {got['requests']} requests, SLO attainment {got['attainment']:.1%}, refused"
                f" {got['refused']} (told within {refusal['max'] if refusal else 0:.3f} s), errors {got['errors']},"
                f" lost {got['lost']}; TTFT {_percentiles(got['ttft'])}, TPOT {_percentiles(got['tpot'])},"
                f" longest gap {_percentiles(got['longest_gap'])}"
            )
            assert got["lost"] == 0
    with capsys.disabled():
        print("", *rows, sep="\n")


def _percentiles(distribution: dict[str, Any]) -> str:
    return f"p50/p99 {distribution['p50']:.3f}/{distribution['p99']:.3f} s"
