"""`llmhostd models pull` of a repository in PEFT's format."""

import json
from pathlib import Path

import pytest
from goldens.adapters import adapter_config, seeded_adapter
from hub_stand_in import Hub, serving
from test_pull_command import pull
from typed_commands import llmhostd

from llmhostd.state.database import open_database
from llmhostd.state.models import ModelTable


@pytest.fixture
def adapter(tiny_models_dir: Path, tmp_path: Path) -> dict[str, bytes]:
    config = json.loads((tiny_models_dir / "tiny-llama" / "config.json").read_text())
    described = adapter_config(base_model_name_or_path="Someone/Tiny-Llama")
    path = seeded_adapter(tmp_path / "adapter", config, 1, config=described)
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_an_adapter_is_added_to_the_base_that_it_names(
    adapter: dict[str, bytes], tiny_models_dir: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    with serving(Hub({**adapter, "README.md": b"x"}, repo="org/poet")) as hub:
        early = pull(hub, state, "org/poet")
        assert (early.returncode, early.stdout) == (2, "")
        assert early.stderr.splitlines()[-1].startswith("llmhostd: base: org--poet was made for Someone/Tiny-Llama")
        assert llmhostd("--state-dir", state, "models", "add", tiny_models_dir / "tiny-llama").returncode == 0
        assert pull(hub, state, "org/poet").stdout == 'poet is added: llmhostd run poet "..."\n'
    models = {str(one.name): one for one in ModelTable(open_database(state)).all()}
    assert (models["poet"].adapter.base, models["poet"].source) == ("tiny-llama", "org/poet")
    assert sorted(one.name for one in (state / "models").iterdir() if one.is_dir()) == ["poet", "tiny-llama"]


def test_a_pickled_adapter_is_not_pulled(adapter: dict[str, bytes], tmp_path: Path) -> None:
    files = {"adapter_config.json": adapter["adapter_config.json"], "adapter_model.bin": b"x"}
    with serving(Hub(files, repo="org/poet")) as hub:
        done = pull(hub, tmp_path / "state", "org/poet")
    assert done.returncode != 0
    assert "org/poet has no adapter_model.safetensors: pickled adapters can run code" in done.stderr
