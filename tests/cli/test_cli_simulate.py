"""`llmhostd simulate` as it is typed."""

import json
from pathlib import Path

from typed_commands import llmhostd, refused

SMALL = ("simulate", "--models", "3", "--size", "160m", "--size", "500m", "--rate", "4", "--requests", "30")


TOLD = dict.fromkeys(
    ("policy", "size", "models", "requests", "slo_met", "slo_rate", "dropped", "kv_utilization", "kv_scaling_share",
     "migrations", "cold_starts", "wall_s")
) | {
    "ttft_s": ["p50", "p90", "p99"], "tpot_s": ["p50", "p99"], "max_gap_s": ["p50", "p99"],
    "nodes_used": ["cpu", "gpu"], "decode_tokens_per_node_s": ["cpu", "gpu"],
}  # fmt: skip


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


def test_an_option_that_would_mean_nothing_is_never_passed_over(tmp_path: Path) -> None:
    needs = "needs --profiles: it is of experiments on published times"
    assert refused(*SMALL, "--policy", "slinfer", status=2) == f"--policy {needs}"
    assert refused(*SMALL, "--cluster", "4gpu", status=2) == f"--cluster {needs}"
    said = refused("simulate", "--profiles", tmp_path / "any.json", "--duration", "9", status=2)
    assert said.startswith("--duration is of made-up loads and boxes")
    assert refused("plan", "--models", "9", status=2) == "--models is of a --cluster, not of this box"


def test_an_experiment_is_repeated_from_published_profiles(tmp_path: Path) -> None:
    times = {"prefill_ms": [[1, 20], [1024, 90]],
             "decode_ms": [{"context_tokens": 512, "by_batch": [[1, 14], [8, 20]]}]}  # fmt: skip
    profile = {"model": "llama-3.2-3b", "device": "gpu", "node": "a100-80g", **times}
    (tmp_path / "profiles.json").write_text(json.dumps({"profiles": [profile]}))
    (tmp_path / "trace.csv").write_text("arrival_s,model_id,input_tokens,output_tokens\n0,0,99,3\n1,1,99,3\n")
    paper = ("simulate", "--trace", tmp_path / "trace.csv", "--profiles", tmp_path / "profiles.json", "--size", "3b")
    done = llmhostd(*paper, "--cluster", "1gpu", "--policy", "slinfer", "--without", "watermark", "--json")
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert {name: list(each) if isinstance(each, dict) else None for name, each in outcome.items()} == TOLD
    assert (outcome["policy"], outcome["models"], outcome["slo_met"], outcome["cold_starts"]) == ("slinfer", 2, 2, 2)
    several = llmhostd(*paper, "--cluster", "1gpu", "--seeds", "2", "--noise", "0.1", "--assume", "keep_alive_s=9")
    assert "SLO met      100.00%" in several.stdout and "seeds" in several.stdout
    assert "'1tpu' is neither a file nor like" in refused(*paper, "--cluster", "1tpu", status=1)
    assert "--size 160m has no published profile" in refused(*paper[:-1], "160m", status=1)
    assert "nothing called" in llmhostd(*paper, "--assume", "keep=1").stderr
    assert "--assume: Expected `float`" in refused(*paper, "--assume", "keep_alive_s=long", status=1)
    assert "--profiles needs --trace" in refused("simulate", *paper[3:], status=1)
