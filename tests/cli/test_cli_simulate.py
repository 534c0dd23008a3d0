"""`llmhostd simulate` as it is typed."""

import json
from pathlib import Path

from typed_commands import llmhostd, refused

SMALL = ("simulate", "--models", "3", "--size", "160m", "--size", "500m", "--rate", "4", "--requests", "30")


def test_the_same_seed_takes_the_same_decisions() -> None:
    def digest(seed: str) -> str:
        done = llmhostd(*SMALL, "--seed", seed, "--json")
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["digest"])

    assert digest("1") == digest("1") != digest("2")


def test_options_reach_the_simulated_box() -> None:
    done = llmhostd(*SMALL, "--best-effort", "1", "--burst", "2,8", "--output-tokens", "3-5", "--memory", "8GiB")
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert "30 in " in rows["requests"]
    assert rows["lost"].split() == ["lost", "0"]
    assert "digest" in rows


def test_what_cannot_be_simulated_is_one_line(tmp_path: Path) -> None:
    assert "--memory: is 'lots'" in refused(*SMALL, "--memory", "lots", status=1)
    assert "cannot be read" in refused("simulate", "--trace", tmp_path / "absent.csv", status=1)
    assert "cannot be used" in refused("simulate", "--box", tmp_path / "absent.json", status=1)
