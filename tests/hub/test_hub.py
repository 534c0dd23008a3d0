import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_stand_in import Hub, serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmhostd.domain.errors import CallerError, CheckpointError, OperatorError
from llmhostd.loader.hub import pull
from llmhostd.loader.range_fetch import FetchPolicy
from llmhostd.loader.safetensors import describe
from llmhostd.loader.store_directory import alone

EAGER = FetchPolicy(fetch_retry_wait_s=0.0, fetch_timeout_s=60.0, fetch_spare_bytes=0)
"""Only what the hub does counts as an attempt: a machine that is slow for seconds must not."""
GIVES_UP = FetchPolicy(fetch_retries=0, fetch_retry_wait_s=0.0, fetch_timeout_s=60.0, fetch_spare_bytes=0)


@pytest.fixture(scope="module")
def contents(tiny_models_dir: Path) -> dict[str, bytes]:
    files = {file.name: file.read_bytes() for file in (tiny_models_dir / "tiny-qwen3").iterdir()}
    return files | {"README.md": b"# hello", "pytorch_model.bin": b"\x80\x04pickle", "consolidated.safetensors": b"x"}


@pytest.fixture
def hub(contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with serving(Hub(dict(contents))) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.origin)
        yield served


def same(path: Path, hub: Hub) -> bool:
    pulled = {file.name: file.read_bytes() for file in path.iterdir() if file.name != ".pulled.json"}
    return all(hub.files[name] == content for name, content in pulled.items()) and "model.safetensors" in pulled


def visible(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if not path.name.startswith(".")]


def test_a_pull_brings_what_a_model_needs_and_nothing_else(hub: Hub, tmp_path: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    path = pull("org/model", tmp_path, EAGER, progress=lambda *what: heard.append(what))
    assert path == tmp_path / "org--model"
    assert same(path, hub)
    assert {file.name for file in path.iterdir()} == {
        "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja",
        "model.safetensors", ".pulled.json",
    }  # fmt: skip
    assert describe(path).architecture.family == "qwen3"
    done = [one for _, one, _ in heard]
    assert done == sorted(done)
    assert done[-1] == heard[-1][2] == sum(f.stat().st_size for f in path.iterdir() if f.name != ".pulled.json")
    assert all(f"/resolve/{hub.commit}/" in asked for asked, _, _ in hub.asked)


def test_a_sharded_model(hub: Hub, tmp_path: Path) -> None:
    whole = hub.files.pop("model.safetensors")
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    hub.files |= dict.fromkeys(names, whole) | {"model.safetensors.index.json": b"{}"}
    path = pull("org/model", tmp_path, EAGER)
    assert {file.name for file in path.glob("model*")} == {*names, "model.safetensors.index.json"}


def test_a_second_pull_fetches_nothing(hub: Hub, tmp_path: Path) -> None:
    pull("org/model", tmp_path, EAGER)
    asked = len(hub.asked)
    pull("org/model", tmp_path, EAGER)
    assert len(hub.asked) == asked


def test_a_newer_commit_replaces_the_checkpoint(hub: Hub, tmp_path: Path) -> None:
    path = pull("org/model", tmp_path, EAGER)
    hub.commit, hub.files["generation_config.json"] = "b" * 40, b'{"eos_token_id": 1}'
    assert pull("org/model", tmp_path, EAGER) == path
    assert same(path, hub)
    assert json.loads((path / ".pulled.json").read_text())["commit"] == "b" * 40
    assert visible(tmp_path) == ["org--model"]


def test_a_broken_connection_is_taken_up_where_it_broke(hub: Hub, tmp_path: Path) -> None:
    size = len(hub.files["model.safetensors"])
    hub.cut_after = [10**9, 10_000, 0, size // 3]
    path = pull("org/model", tmp_path, EAGER)
    assert same(path, hub)
    begins = [0, 10_000, 10_000, 10_000 + size // 3]
    assert hub.downloaded("model.safetensors") == [f"bytes={begin}-" for begin in begins]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000), ignore_ranges=st.booleans())
def test_interruptions_at_any_byte_then_another_run(
    hub: Hub, tmp_path_factory: pytest.TempPathFactory, seed: int, ignore_ranges: bool
) -> None:
    directory, draw = tmp_path_factory.mktemp("pull"), random.Random(seed)
    cut = draw.randrange(1, len(hub.files["model.safetensors"]))
    hub.asked.clear()
    hub.ignore_ranges, hub.cut_after = False, [10**9, cut, 0]
    with pytest.raises(OperatorError, match="what came is kept, run again to go on"):
        pull("org/model", directory, GIVES_UP)
    assert visible(directory) == []
    hub.ignore_ranges = ignore_ranges
    assert same(pull("org/model", directory, GIVES_UP), hub)
    assert hub.downloaded("model.safetensors") == ["bytes=0-", f"bytes={cut}-", f"bytes={cut}-"]
    assert len(hub.downloaded("tokenizer.json")) == 1
    assert sorted(path.name for path in directory.iterdir()) == ["org--model"]


def test_a_corrupt_download_is_fetched_again(hub: Hub, tmp_path: Path) -> None:
    hub.corrupt_downloads = 1
    assert same(pull("org/model", tmp_path, EAGER), hub)


def test_content_that_stays_corrupt_is_never_put_in_place(hub: Hub, tmp_path: Path) -> None:
    hub.corrupt_downloads = 10
    with pytest.raises(OperatorError, match=r"tokenizer\.json came twice with a wrong checksum"):
        pull("org/model", tmp_path, EAGER)
    assert visible(tmp_path) == []
    hub.corrupt_downloads = 0
    assert same(pull("org/model", tmp_path, EAGER), hub)


def test_a_part_with_foreign_bytes_is_found_out(hub: Hub, tmp_path: Path) -> None:
    hub.cut_after = [10**9, 5_000, 0]
    with pytest.raises(OperatorError):
        pull("org/model", tmp_path, GIVES_UP)
    (part,) = (tmp_path / ".org--model.unfinished").glob("*.part")
    part.write_bytes(b"?" * 7_000)
    assert same(pull("org/model", tmp_path, EAGER), hub)


def test_a_busy_hub_is_asked_again(hub: Hub, tmp_path: Path) -> None:
    hub.busy_answers = 3
    assert same(pull("org/model", tmp_path, EAGER), hub)


def test_a_hub_that_sends_more_than_it_said_is_not_believed(hub: Hub, tmp_path: Path) -> None:
    hub.claimed_size = 1_000
    with pytest.raises(OperatorError, match="wrong checksum"):
        pull("org/model", tmp_path, EAGER)
    assert visible(tmp_path) == []


def test_the_token_goes_to_the_hub_and_not_to_where_it_redirects(
    hub: Hub, contents: dict[str, bytes], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.token = "hf_secret"
    with serving(Hub(dict(contents))) as cdn:
        hub.redirect_to = cdn.origin
        assert same(pull("org/model", tmp_path, EAGER, token="hf_secret"), hub)
    assert cdn.asked
    assert all(authorization is None for _, _, authorization in cdn.asked)
    assert "hf_secret" not in "".join(file.read_text("latin-1") for file in tmp_path.rglob("*") if file.is_file())
    assert "hf_secret" not in "".join(capfd.readouterr())


def test_the_token_of_the_environment(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token, hub.gated = "hf_secret", True
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert same(pull("org/model", tmp_path, EAGER), hub)
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    with pytest.raises(
        OperatorError, match=r"org/model is gated: accept its terms at http.*/org/model and set HF_TOKEN"
    ):
        pull("org/model", tmp_path, EAGER)


def test_what_does_not_exist(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(CallerError, match=r"there is no model org/missing at http.*if it is private, set HF_TOKEN"):
        pull("org/missing", tmp_path, EAGER)
    with pytest.raises(CallerError, match="org/model has no revision 'v9'"):
        pull("org/model", tmp_path, EAGER, revision="v9")


@pytest.mark.parametrize(
    ("remove", "add", "message"),
    [
        (["config.json"], {}, "org/model has no config.json: it is not a model"),
        (["config.json", "tokenizer.json"], {}, "org/model has no config.json and no tokenizer.json"),
        (["model.safetensors"], {}, "only pickled weights, which can run code and are never pulled"),
        (["model.safetensors", "pytorch_model.bin"], {"m.gguf": b"G"}, r"has no model\.safetensors; look for"),
    ],
)
def test_what_cannot_be_run_is_not_pulled(
    hub: Hub, tmp_path: Path, remove: list[str], add: dict[str, bytes], message: str
) -> None:
    hub.files = {name: content for name, content in hub.files.items() if name not in remove} | add
    with pytest.raises(CheckpointError, match=message):
        pull("org/model", tmp_path, EAGER)
    assert hub.asked == []
    assert visible(tmp_path) == []


@pytest.mark.parametrize(
    "repo", ["model", "org/", "../etc", "org/..", "a/b/c", "org/mo del", "org/a..b", "-x/y", "a--b/c"]
)
def test_bad_names_are_refused_before_anything_is_asked(tmp_path: Path, repo: str) -> None:
    with pytest.raises(CallerError, match="is not a model on a hub; write ORG/NAME") as caught:
        pull(repo, tmp_path, EAGER, endpoint="http://127.0.0.1:9")
    assert caught.value.field == "repo"
    with pytest.raises(CallerError, match="is not a revision"):
        pull("org/model", tmp_path, EAGER, revision="../main", endpoint="http://127.0.0.1:9")


def test_a_hub_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"http://127.0.0.1:9 cannot be asked for org/model"):
        pull("org/model", tmp_path, EAGER, endpoint="http://127.0.0.1:9")


def test_a_model_larger_than_the_disk_is_refused_before_a_byte_comes(hub: Hub, tmp_path: Path) -> None:
    hub.claimed_size = 10**16
    with pytest.raises(
        OperatorError, match=r"org/model needs 20000000\.0 GB more in .*, where .* may be used; free some"
    ):
        pull("org/model", tmp_path, EAGER)
    assert hub.asked == []


def test_a_disk_that_fills_up_loses_nothing(hub: Hub, tmp_path: Path) -> None:
    """The kernel refuses to let files grow past a limit, as a full disk would; then there is room again."""
    program = f"""
import resource, signal, sys
from pathlib import Path
from llmhostd.domain.errors import OperatorError
from llmhostd.loader.hub import pull
from llmhostd.loader.range_fetch import FetchPolicy
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    pull("org/model", Path({str(tmp_path)!r}), FetchPolicy())
except OperatorError as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert (
        ended.stdout == f"{tmp_path}: the disk is full; free some space and run again: what was pulled so far is kept\n"
    )
    assert visible(tmp_path) == []
    (part,) = (tmp_path / ".org--model.unfinished").glob("*.part")
    kept = part.stat().st_size
    assert kept == 50_000
    hub.asked.clear()
    assert same(pull("org/model", tmp_path, EAGER), hub)
    assert hub.downloaded("model.safetensors") == [f"bytes={kept}-"]


def test_two_pulls_of_one_model_do_not_meet(hub: Hub, tmp_path: Path) -> None:
    said = f"{tmp_path}/org--model: is being made by another process"
    with alone(tmp_path / ".org--model.unfinished", tmp_path / "org--model"), pytest.raises(OperatorError, match=said):
        pull("org/model", tmp_path, EAGER)


def test_a_directory_that_cannot_be_made(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OperatorError, match=r"file.*: (Not a directory|File exists)"):
        pull("org/model", tmp_path / "file", EAGER)
