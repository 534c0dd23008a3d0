"""Adapters come and go on a state directory that no daemon owns."""

import json
from pathlib import Path

from goldens.adapters import adapter_config, seeded_adapter
from typed_commands import llmhostd, refused

from llmhostd.state.database import open_database
from llmhostd.state.models import ModelTable


def adapter_for(checkpoint: Path, path: Path, **config: object) -> Path:
    described = adapter_config(**config)  # type: ignore[arg-type]
    return seeded_adapter(path, json.loads((checkpoint / "config.json").read_text()), 1, config=described)


def test_add_list_and_remove(tmp_path: Path, tiny_models_dir: Path) -> None:
    state, base = ("--state-dir", tmp_path / "s"), tiny_models_dir / "tiny-llama"
    path = adapter_for(base, tmp_path / "poet", base_model_name_or_path="org/tiny-llama")
    assert refused(*state, "models", "add", path, status=2) == (
        "base: poet was made for org/tiny-llama, which is none of the models here; add it, or name it"
    )
    assert llmhostd(*state, "models", "add", base).returncode == 0
    added = llmhostd(*state, "models", "add", path, "--ttft", "0.5")
    assert (added.returncode, added.stdout) == (0, 'poet is added: llmhostd run poet "..."\n')
    (model,) = [one for one in ModelTable(open_database(tmp_path / "s")).all() if one.adapter]
    assert (model.adapter.base, model.adapter.rank, model.ttft_s) == ("tiny-llama", 4, 0.5)
    # It is served from a copy of its own; adding it again changes nothing.
    assert model.path == str(tmp_path / "s" / "models" / "poet")
    assert sorted(one.name for one in Path(model.path).iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors",
    ]  # fmt: skip
    assert llmhostd(*state, "models", "add", path).returncode == 0
    rows = [row.split() for row in llmhostd(*state, "models", "list").stdout.splitlines()]
    assert [row[:1] + row[4:6] for row in rows[1:]] == [["poet", "on", "tiny-llama"], ["tiny-llama", "f32", "449"]]

    assert llmhostd(*state, "models", "verify").stdout == "poet is whole\ntiny-llama is whole\n"
    weights = Path(model.path) / "adapter_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-2] ^= 1
    weights.write_bytes(content)
    assert refused(*state, "models", "verify", "poet", status=1) == (
        f"{model.path}: its files changed since it was added; add it again"
    )

    said = refused(*state, "models", "rm", "tiny-llama", status=2)
    assert said == "tiny-llama is the base of poet: remove them first"
    gone = llmhostd(*state, "models", "rm", "poet")
    assert gone.stdout.startswith(f"poet is gone; its copy in {model.path} is deleted (")
    assert llmhostd(*state, "models", "rm", "tiny-llama").returncode == 0
    assert (path / "adapter_model.safetensors").exists()


def test_what_does_not_go_is_said_in_one_line(tmp_path: Path, tiny_models_dir: Path) -> None:
    state, base = ("--state-dir", tmp_path / "s"), tiny_models_dir / "tiny-llama"
    path = adapter_for(base, tmp_path / "poet")
    for name in ("tiny-llama", "tiny-qwen3"):
        assert llmhostd(*state, "models", "add", tiny_models_dir / name).returncode == 0
    add = (*state, "models", "add", path)
    assert refused(*add, "--base", "tiny-lama", status=2) == (
        "base: there is no model 'tiny-lama'; did you mean 'tiny-llama'?"
    )
    assert refused(*add, "--base", "tiny-llama", "--quantize", "int8", status=2) == (
        "--quantize is for models: an adapter is computed beside its base"
    )
    wrong = refused(*add, "--base", "tiny-qwen3", status=1)
    assert wrong.endswith("the configuration and the base ask for [128, 4] (base: tiny-qwen3); it fits tiny-llama")
    wide = adapter_for(base, tmp_path / "wide", rank=65)
    assert refused(*state, "models", "add", wide, "--base", "tiny-llama", status=2) == (
        "path: its rank is 65; slots have at most 64 (setting adapters.most_rank)"
    )
    assert refused(*state, "models", "add", base, "--base", "tiny-llama", "--name", "x", status=2).startswith(
        f"base: {base} is no adapter: it has no adapter_config.json"
    )
    assert not (tmp_path / "s" / "models" / "poet").exists()
