"""`llmhostd plan` as it is typed."""

import json
from pathlib import Path

from daemon_process import register
from typed_commands import llmhostd, refused

SHORT = ("--duration", "20", "--quick", "--processes", "1")
PROFILES = {
    "profiles": [
        {
            "model": "llama-2-7b", "device": kind, "node": node, "sllm_concurrency": 15, "sllm_share_concurrency": 4,
            "prefill_ms": [[256, 40 * slow], [4096, 600 * slow]],
            "decode_ms": [{"context_tokens": 256, "by_batch": [[1, 13 * slow], [64, 20 * slow]]}],
        }
        for kind, node, slow in (("cpu", "xeon-6462c-32c", 6), ("gpu", "a100-80g", 1))
    ]
}  # fmt: skip


def test_this_box_is_planned_with_its_own_models(tmp_path: Path, tiny_models_dir: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    register(state, [tiny_models_dir / "tiny-llama", tiny_models_dir / "tiny-qwen3"])
    place = ("--state-dir", state)
    done = llmhostd(*place, "plan", "--rate", "tiny-llama=2", "--rate", "tiny-qwen3=1", *SHORT, "--input-tokens", "20",
                    "--output-tokens", "5-20", "--plot", tmp_path / "plan.html")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Never measured here, so roughly estimated: tiny-llama, tiny-qwen3" in done.stdout
    assert "All 2 models keep their promises" in done.stdout
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "100 %" in rows["tiny-llama"]
    assert "tiny-qwen3" in (tmp_path / "plan.html").read_text()
    assert "--rate tiny-lama: there is no such model" in refused(*place, "plan", "--rate", "tiny-lama=1", status=2)
    assert "plan.jpg is neither" in refused(*place, "plan", "--plot", "plan.jpg", status=2)


def test_another_box_is_planned_by_published_times(tmp_path: Path) -> None:
    (tmp_path / "profiles.json").write_text(json.dumps(PROFILES))
    box = ("--cluster", "1cpu+1gpu", "--profiles", tmp_path / "profiles.json", "--models", "3")
    done = llmhostd("plan", *box, "--rate", "1", *SHORT, "--json")
    assert done.returncode == 0, done.stderr
    outlooks = json.loads(done.stdout)["outlooks"]
    assert [one["name"] for one in outlooks][:4] == [
        "as it is",
        "one more CPU node",
        "one more GPU",
        "twice the memory",
    ]
    assert outlooks[0]["answer"]["attainment"] > 0.9
    assert [node["node"] for node in outlooks[0]["answer"]["nodes"]] == ["cpu0", "gpu0"]


def test_what_cannot_be_planned_is_one_line(tmp_path: Path) -> None:
    assert "has no models yet" in refused("--state-dir", tmp_path, "plan", status=1)
    assert "--cluster needs --profiles" in refused("plan", "--cluster", "1gpu", status=2)
    assert "give one for all models, or one for each" in refused("plan", "--rate", "1", "--rate", "a=2", status=2)
