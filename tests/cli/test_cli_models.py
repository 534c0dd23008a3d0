"""Models come and go on a state directory that no daemon owns."""

import fcntl
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typed_commands import llmhostd, refused

from llmhostd.demo.catalog import DEMO_MODELS
from llmhostd.state.database import open_database
from llmhostd.state.models import ModelTable, RegisteredModel


def state_of(directory: Path) -> dict[str, RegisteredModel]:
    return {str(one.name): one for one in ModelTable(open_database(directory)).all()}


def test_add_list_and_remove(tmp_path: Path, tiny_models_dir: Path) -> None:
    checkpoint = tiny_models_dir / "tiny-qwen3-bf16"
    added = llmhostd("--state-dir", tmp_path, "models", "add", checkpoint, "--name", "q", "--ttft", "0.5", "--kv", "u8")
    assert (added.returncode, added.stdout) == (0, 'q is added: llmhostd run q "..."\n')
    model = state_of(tmp_path)["q"]
    assert (model.path, model.ttft_s, model.tpot_s, model.kv) == (str(tmp_path / "models" / "q"), 0.5, None, "u8")

    (header, row) = llmhostd("--state-dir", tmp_path, "models", "list").stdout.splitlines()
    assert header.split() == ["MODEL", "FAMILY", "PARAMS", "WEIGHTS", "SIZE", "CONTEXT", "STATE"]
    assert row.split()[:2] == ["q", "qwen3"]

    assert refused("--state-dir", tmp_path, "models", "rm", "qq", status=2) == (
        "there is no model 'qq'; did you mean 'q'?"
    )
    gone = llmhostd("--state-dir", tmp_path, "models", "rm", "q").stdout
    assert gone.startswith(f"q is gone; its copy in {tmp_path}/models/q is deleted (")
    assert state_of(tmp_path) == {}
    assert list((tmp_path / "models").iterdir()) == []
    assert (checkpoint / "model.safetensors").exists()


def test_precisions_that_no_node_could_load_together_are_refused_when_they_are_asked_for(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    add = ("--state-dir", tmp_path, "models", "add", tiny_models_dir / "tiny-llama", "--compute", "f32")
    said = refused(*add, "--kv", "bf16", status=2)
    assert said.startswith("kv: bf16 does not go with compute f32; choose f32 or u8")
    # Quantized weights are computed in f32, so it is refused before anything is quantized.
    said = refused(*add[:-2], "--quantize", "int8", "--kv", "bf16", status=2)
    assert said.startswith("kv: bf16 does not go with compute f32; choose f32 or u8")
    assert not tmp_path.exists() or not list(tmp_path.iterdir())


def test_the_name_is_the_directorys_and_a_relative_path_becomes_absolute(tmp_path: Path, tiny_models_dir: Path) -> None:
    linked = tmp_path / "models here"
    linked.symlink_to(tiny_models_dir)
    add = ("--state-dir", tmp_path / "s", "models", "add", linked / "tiny-llama", "--in-place")
    assert llmhostd(*add).returncode == 0
    assert state_of(tmp_path / "s")["tiny-llama"].path == str(linked / "tiny-llama")


def test_a_smaller_copy_is_made_once_and_deleted_with_its_model(tmp_path: Path, tiny_models_dir: Path) -> None:
    command = ("--state-dir", tmp_path, "models", "add", tiny_models_dir / "tiny-llama-bf16", "--quantize", "int8")
    assert llmhostd(*command).returncode == 0
    model = state_of(tmp_path)["tiny-llama-bf16-int8"]
    assert (model.shape.weights, model.path) == ("int8", str(tmp_path / "models" / model.name))
    assert llmhostd(*command).returncode == 0, "the same copy serves again"
    other = ("--state-dir", tmp_path, "models", "add", tiny_models_dir / "tiny-llama", "--name", model.name)
    assert "exists" in refused(*other, status=1)
    assert llmhostd("--state-dir", tmp_path, "models", "rm", model.name, "--keep-files").stdout == (
        f"{model.name} is gone; its copy in {model.path} stays\n"
    )
    assert llmhostd(*command).returncode == 0, "what was kept serves again"
    removed = llmhostd("--state-dir", tmp_path, "models", "rm", model.name)
    assert removed.stdout.startswith(f"{model.name} is gone; its copy in {model.path} is deleted (")
    assert not Path(model.path).exists()


def test_a_copy_that_two_models_are_served_from_goes_with_the_last(tmp_path: Path, tiny_models_dir: Path) -> None:
    models = ("--state-dir", tmp_path, "models")
    llmhostd(*models, "add", tiny_models_dir / "tiny-llama")
    llmhostd(*models, "add", tmp_path / "models" / "tiny-llama", "--name", "alias")
    copy = tmp_path / "models" / "tiny-llama"
    said = f"tiny-llama is gone; its files in {copy} are also those of alias, and stay\n"
    assert llmhostd(*models, "rm", "tiny-llama").stdout == said
    assert copy.exists()
    assert llmhostd(*models, "rm", "alias").stdout.startswith(f"alias is gone; its copy in {copy} is deleted (")
    assert not copy.exists()


def test_what_interruptions_left_is_found_and_deleted_by_name(tmp_path: Path, tiny_models_dir: Path) -> None:
    models, made = ("--state-dir", tmp_path, "models"), tmp_path / "models"
    llmhostd(*models, "add", tiny_models_dir / "tiny-llama", "--name", "here")
    for name in (".cut.partial", ".org--cut.unfinished", ".gone.removed", "nobodys"):
        shutil.copytree(made / "here", made / name)
    said = llmhostd("--state-dir", tmp_path, "doctor", "--json").stdout
    found = {one["sentence"] for one in json.loads(said)["findings"] if one["subject"] == "leftover"}
    assert len(found) == 4
    assert any(one.startswith(f"{made}/.cut.partial is an unfinished copy: ") for one in found)
    assert "there is no model 'her'" in refused(*models, "rm", "her", status=2)
    for name in ("cut", "org--cut", "gone", "nobodys"):
        assert " is deleted: " in llmhostd(*models, "rm", name).stdout
    assert [one.name for one in made.iterdir() if one.is_dir()] == ["here"]


def test_files_that_are_somebody_elses_stay(tmp_path: Path, tiny_models_dir: Path) -> None:
    checkpoint = tmp_path / "theirs"
    shutil.copytree(tiny_models_dir / "tiny-llama", checkpoint)
    llmhostd("--state-dir", tmp_path / "s", "models", "add", checkpoint, "--in-place")
    removed = llmhostd("--state-dir", tmp_path / "s", "models", "rm", "theirs")
    assert removed.stdout == f"theirs is gone; its files in {checkpoint} were served where they lie, and stay\n"
    assert (checkpoint / "model.safetensors").exists()


def other_family(path: Path) -> None:
    config = json.loads((path / "config.json").read_text())
    mamba = {"model_type": "mamba", "architectures": ["MambaForCausalLM"]}
    (path / "config.json").write_text(json.dumps(config | mamba))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: (path / "config.json").unlink(), "config.json: cannot be read: No such file or directory"),
        (lambda path: (path / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda path: (path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}"), "model.safetensors"),
        (other_family, "MambaForCausalLM"),
    ],
    ids=["no config", "no tokenizer", "truncated", "unknown family"],
)
def test_a_checkpoint_that_cannot_be_served_is_not_added(
    tmp_path: Path, tiny_models_dir: Path, damage: Callable[[Path], None], said: str
) -> None:
    checkpoint = tmp_path / "broken"
    shutil.copytree(tiny_models_dir / "tiny-llama", checkpoint)
    damage(checkpoint)
    state = tmp_path / "state"
    assert said in refused("--state-dir", state, "models", "add", checkpoint, status=1)
    assert not (state / "state.db").exists()


def test_a_state_that_another_process_owns_is_left_alone(tmp_path: Path, tiny_models_dir: Path) -> None:
    with (tmp_path / "llmhostd.lock").open("w") as lock:
        lock.write("4242\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = llmhostd("--state-dir", tmp_path, "models", "add", tiny_models_dir / "tiny-llama")
    assert done.returncode == 1
    waiting, gave_up = done.stderr.splitlines()
    assert "in use by another llmhostd (pid 4242)" in waiting
    assert waiting.endswith("waiting for it up to 10 s")
    assert "in use by another llmhostd (pid 4242)" in gave_up


def test_demo_models_are_made_and_can_be_asked_for_twice(tmp_path: Path) -> None:
    small = min(DEMO_MODELS, key=lambda one: one.stored_bytes)
    for _ in range(2):
        made = llmhostd("--state-dir", tmp_path, "demo-models", small.name)
        assert made.stdout == f"{small.name}: {small.about}\n"
    assert state_of(tmp_path)[small.name].source == "demo"
    assert "nearest" in refused("--state-dir", tmp_path, "demo-models", "demo-prose", status=2)


def test_no_models_yet(tmp_path: Path) -> None:
    assert "no models yet" in llmhostd("--state-dir", tmp_path / "nowhere", "models", "list").stdout
    assert "no models yet" in llmhostd("--state-dir", tmp_path / "nowhere", "models", "verify").stdout
    assert not (tmp_path / "nowhere").exists()


def test_a_name_that_cannot_be_one_is_never_replaced_by_another(tmp_path: Path, tiny_models_dir: Path) -> None:
    add, odd = ("--state-dir", tmp_path / "state", "models", "add"), tmp_path / "my model (1)"
    shutil.copytree(tiny_models_dir / "tiny-llama", odd)
    assert refused(*add, odd, status=2) == "name: the directory's, 'my model (1)', is none for a model; give --name"
    assert refused(*add, odd, "--name", "", status=2).startswith("name: is ''; expected ")
    assert not (tmp_path / "state").exists()


def test_a_copy_is_verified(tmp_path: Path, tiny_models_dir: Path) -> None:
    add = ("--state-dir", tmp_path, "models", "add", tiny_models_dir / "tiny-llama")
    llmhostd(*add)
    llmhostd(*add, "--name", "as-it-came", "--in-place")
    checked = llmhostd("--state-dir", tmp_path, "models", "verify")
    assert checked.stdout == "tiny-llama is whole\n"
    assert checked.stderr == "served as they came, or not here yet, so not checked: as-it-came\n"
    data = tmp_path / "models" / "tiny-llama" / "weights.llmhostd"
    damaged = bytearray(data.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    data.write_bytes(damaged)
    assert "is damaged" in refused("--state-dir", tmp_path, "models", "verify", "tiny-llama", status=1)
    llmhostd(*add[:-1], tiny_models_dir / "tiny-qwen3")
    for_all = llmhostd("--state-dir", tmp_path, "models", "verify")
    assert (for_all.returncode, for_all.stdout) == (1, "tiny-qwen3 is whole\n"), "one that is damaged hides no other"
    assert f"llmhostd: {data}: block" in for_all.stderr
    (data.parent / "weights.llmhostd.json").unlink()
    found = json.loads(llmhostd("--state-dir", tmp_path, "doctor", "--json").stdout)["findings"]
    assert [one["sentence"] for one in found if one["subject"] == "files"] == [
        f"{data}.json: cannot be read: No such file or directory."
    ]
    assert "did you mean 'tiny-llama'" in refused("--state-dir", tmp_path, "models", "verify", "tiny-lama", status=2)


@pytest.mark.usefixtures("leases")
def test_files_that_cannot_be_leased_are_told_of(tmp_path: Path, tiny_models_dir: Path) -> None:
    add = ("--state-dir", tmp_path, "models", "add")
    for name in ("tiny-llama", "tiny-qwen3"):
        shutil.copytree(tiny_models_dir / name, tmp_path / name)
        llmhostd(*add, tmp_path / name, "--in-place")
    llmhostd(*add, tiny_models_dir / "tiny-llama", "--name", "stored")

    def told() -> list[str]:
        found = json.loads(llmhostd("--state-dir", tmp_path, "doctor", "--json").stdout)["findings"]
        return [one["sentence"] for one in found if one["subject"] == "files"]

    assert told() == []
    first, second = (tmp_path / name / "model.safetensors" for name in ("tiny-llama", "tiny-qwen3"))
    with first.open("r+b"), second.open("r+b"):
        (said,) = told()
    assert said.startswith(
        f"the files of {tmp_path / 'tiny-llama'} and of 1 more model(s) cannot be leased: somebody has"
    )
