import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from llmhostd.demo.catalog import DEMO_MODELS
from llmhostd.demo.models import make_demo_models
from llmhostd.demo.noise import make_checkpoint, noise_architecture
from llmhostd.demo.tiny import TINY_MODELS, make_tiny_models
from llmhostd.domain.errors import CallerError, OperatorError
from llmhostd.loader.safetensors import describe
from llmhostd.text.template_process import TemplateProcess
from llmhostd.text.tokenizer import read_tokenizer

SMALL = ["demo-prose-qwen3", "demo-noise-qwen2-5m"]


def digests(directory: Path) -> dict[str, str]:
    files = sorted(file for file in directory.rglob("*") if file.is_file())
    return {str(file.relative_to(directory)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("demo")
    make_demo_models(directory, SMALL)
    return directory


def test_the_default_set_is_varied_and_fits_on_a_small_disk() -> None:
    families = {model.about.split(",")[0] for model in DEMO_MODELS}
    assert len(DEMO_MODELS) >= 5
    assert len(families) >= 3
    assert sum("prose" in model.name for model in DEMO_MODELS) >= 2
    assert sum(model.stored_bytes for model in DEMO_MODELS) < 1_000_000_000


@pytest.mark.parametrize("name", SMALL)
def test_a_made_model_is_whole(made: Path, name: str) -> None:
    model = next(one for one in DEMO_MODELS if one.name == name)
    found = describe(made / name)
    assert found.architecture.family == model.about.split(",")[0]
    process = TemplateProcess()
    tokenizer = read_tokenizer(made / name, name, process)
    assert tokenizer.vocab == found.architecture.vocab
    assert tokenizer.eos_token_ids == found.architecture.eos_token_ids
    assert tokenizer.decode(tokenizer.encode("Naïve 日本 😀 text")) == "Naïve 日本 😀 text"
    assert tokenizer.chat_template.render([{"role": "user", "content": "Hi"}]).endswith("<|assistant|>")
    process.close()


def test_a_second_run_leaves_them_as_they_are(made: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in made.rglob("*") if file.is_file() and file.name[0] != "."}
    heard: list[tuple[str, int, int]] = []
    paths = make_demo_models(made, SMALL, lambda *what: heard.append(what))
    assert paths == [made / name for name in SMALL]
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert [(name, done == total) for name, done, total in heard] == [(name, True) for name in SMALL]


def test_another_process_with_another_hash_seed_makes_the_same_bytes(made: Path, tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from llmhostd.demo.models import make_demo_models
make_demo_models(Path({str(tmp_path)!r}), {SMALL})
"""
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ | {"PYTHONHASHSEED": "77"})
    for name in SMALL:
        assert digests(tmp_path / name) == digests(made / name)


def test_progress_only_goes_forward_and_ends_at_the_whole(tmp_path: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    make_demo_models(tmp_path, ["demo-noise-qwen2-5m"], lambda *what: heard.append(what))
    done = [one for _, one, _ in heard]
    assert done == sorted(done)
    assert done[0] == 0
    # Written, then made into a store.
    assert done[-1] == heard[-1][2] == 2 * next(m.stored_bytes for m in DEMO_MODELS if m.name == "demo-noise-qwen2-5m")


def test_what_a_killed_run_left_behind_is_replaced(tmp_path: Path) -> None:
    left = tmp_path / ".demo-noise-qwen2-5m.unfinished"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    (path,) = make_demo_models(tmp_path, ["demo-noise-qwen2-5m"])
    assert describe(path).architecture.layers == 4
    assert not left.exists()


def test_a_full_disk_is_a_clear_error_and_leaves_nothing(tmp_path: Path) -> None:
    program = f"""
import resource, signal
from pathlib import Path
from llmhostd.demo.models import make_demo_models
from llmhostd.domain.errors import OperatorError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4_000_000, 4_000_000))
try:
    make_demo_models(Path({str(tmp_path)!r}), ["demo-noise-qwen2-5m"])
except OperatorError as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ended.stdout.startswith(f"{tmp_path}: demo models cannot be made: File too large")
    assert [file.name for file in tmp_path.iterdir()] == [".demo-models.lock"]


def test_an_unknown_name_and_an_impossible_place(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="no demo model 'demo-prose-lama'; nearest: 'demo-prose-llama'"):
        make_demo_models(tmp_path, ["demo-prose-lama"])
    (tmp_path / "file").touch()
    with pytest.raises(OperatorError, match="cannot be made"):
        make_demo_models(tmp_path / "file" / "models", SMALL)
    with pytest.raises(CallerError, match="no model family 'gpt2'; known: llama"):
        noise_architecture("gpt2")


def test_tiny_models_are_of_every_family_and_the_same_every_time(tiny_models_dir: Path, tmp_path: Path) -> None:
    assert {architecture.family for architecture, _ in TINY_MODELS.values()} == {"llama", "mistral", "qwen2", "qwen3"}
    for name, path in make_tiny_models(tmp_path).items():
        assert describe(path).architecture == TINY_MODELS[name][0]
        assert describe(path).weights == TINY_MODELS[name][1]
        assert digests(path) == digests(tiny_models_dir / name)


def test_noise_depends_on_the_seed_and_is_scaled_by_the_width(tmp_path: Path) -> None:
    architecture = noise_architecture("llama", layers=1, hidden=256, heads=4, kv_heads=2, intermediate=512, vocab=300)
    one, other = (make_checkpoint(tmp_path / str(seed), architecture, seed=seed) for seed in (1, 2))
    assert (one / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()
    tensor = describe(one).tensors["model.layers.0.mlp.down_proj.weight"]
    raw = tensor.file.read_bytes()[tensor.begin : tensor.end]
    values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
    assert abs(values.std() * 512**0.5 - 1) < 0.01
