"""`llmhostd evaluate` as it is typed."""

import json
from pathlib import Path

from test_cli_plan import PROFILES
from typed_commands import llmhostd, refused

TRACE = "slinfer_azfunc128_azconv.csv.gz"


def make_data(folder: Path) -> Path:
    import gzip

    folder.mkdir()
    (folder / "slinfer_profiles.json").write_text(json.dumps(PROFILES))
    rows = [f"{n * 0.3:.1f},{n},50,8" for n in range(128)]
    text = "\n".join(["arrival_s,model_id,input_tokens,output_tokens", *rows])
    (folder / TRACE).write_bytes(gzip.compress(text.encode()))
    return folder


def test_a_part_is_computed_reported_and_not_computed_again(tmp_path: Path) -> None:
    data, out = make_data(tmp_path / "data"), tmp_path / "out"
    asked = ("evaluate", "--data", data, "--out", out, "--part", "watermark", "--processes", "1")
    done = llmhostd(*asked)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{out}/report.html has 5 experiments\n"
    assert done.stderr.count("% met") == 5
    assert "At a watermark of 25%" in (out / "report.html").read_text()
    files = {file: file.stat().st_mtime_ns for file in (out / "points").iterdir()}
    assert len(files) == 5
    quick = llmhostd(*asked, "--minutes", "0.2")
    assert quick.stderr.count("% met") == 5, "other points than those of whole traces"
    assert "Only the first 0.2 minutes of each trace" in (out / "report.html").read_text()
    again = llmhostd(*asked)
    assert again.returncode == 0, again.stderr
    assert "met" not in again.stderr
    assert {file: file.stat().st_mtime_ns for file in files} == files


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    assert "--data is missing: a folder with slinfer_profiles.json" in refused("evaluate", status=2)
    assert "has no slinfer_profiles.json" in refused("evaluate", "--data", tmp_path, status=1)
    data = make_data(tmp_path / "data")
    (data / TRACE).unlink()
    done = llmhostd("evaluate", "--data", data, "--out", tmp_path / "out", "--part", "cpus")
    assert done.returncode == 1
    assert f"{data / TRACE} is not there: 10 experiments are left out" in done.stderr
    wrong = llmhostd("evaluate", "--data", data, "--part", "gird")
    assert wrong.returncode == 2
    assert "there is no part 'gird'; there are: grid, growth" in wrong.stderr
