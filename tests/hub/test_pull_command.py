"""`llmhostd models pull` as it is typed, against a hub of another make."""

import os
import subprocess
import sys
from pathlib import Path

from hub_stand_in import Hub, serving

from llmhostd.state.database import open_database
from llmhostd.state.models import ModelTable

COMMAND = str(Path(sys.executable).with_name("llmhostd"))


def pull(hub: Hub, state: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    command = [COMMAND, "--state-dir", str(state), "models", "pull", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment | {"HF_ENDPOINT": hub.origin}
    )


def hub_of(checkpoint: Path) -> Hub:
    return Hub({file.name: file.read_bytes() for file in checkpoint.iterdir()})


def test_a_pulled_model_is_added_and_made_smaller(tiny_models_dir: Path, tmp_path: Path) -> None:
    with serving(hub_of(tiny_models_dir / "tiny-qwen3-bf16")) as hub:
        assert pull(hub, tmp_path, "org/model").stdout == 'model is added: llmhostd run model "..."\n'
        small = pull(hub, tmp_path, "org/model", "--quantize", "int8")
        assert small.stdout == 'model-int8 is added: llmhostd run model-int8 "..."\n'
    models = {str(one.name): one for one in ModelTable(open_database(tmp_path)).all()}
    assert {(name, one.shape.weights, one.source) for name, one in models.items()} == {
        ("model", "bf16", "org/model"),
        ("model-int8", "int8", "org/model"),
    }
    assert models["model"].path == str(tmp_path / "models" / "model")
    assert sorted(one.name for one in (tmp_path / "models").iterdir()) == ["model", "model-int8"]


def test_a_repository_that_does_not_exist_adds_nothing(tiny_models_dir: Path, tmp_path: Path) -> None:
    with serving(hub_of(tiny_models_dir / "tiny-llama")) as hub:
        done = pull(hub, tmp_path, "org/other")
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "org/other" in done.stderr
    assert not (tmp_path / "state.db").exists()


def test_nothing_is_fetched_that_could_not_be_added_so(tiny_models_dir: Path, tmp_path: Path) -> None:
    with serving(hub_of(tiny_models_dir / "tiny-llama")) as hub:
        for options, says in (
            (("--name", "no name"), "name: is 'no name'"),
            (("--quantize", "int8", "--in-place"), "--quantize makes a copy: leave out --in-place"),
        ):
            done = pull(hub, tmp_path, "org/model", *options)
            assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
            assert says in done.stderr
        assert hub.asked == []
    assert not (tmp_path / "models").exists()
