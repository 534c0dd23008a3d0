"""`llmhostd models add URL` as it is typed, with no daemon about."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from file_server import FileServer, serving
from typed_commands import llmhostd, refused

from llmhostd.loader.convert import convert
from llmhostd.loader.store_index import read_remote
from llmhostd.state.database import open_database
from llmhostd.state.models import ModelTable


@pytest.fixture
def files(tmp_path: Path, tiny_models_dir: Path) -> Iterator[FileServer]:
    convert(tiny_models_dir / "tiny-llama", tmp_path / "served" / "store" / "llama")
    convert(tiny_models_dir / "tiny-qwen3", tmp_path / "served" / "store" / "other")
    with serving(FileServer(tmp_path / "served")) as server:
        yield server


def test_it_is_added_without_its_weights_once_and_removed_whole(files: FileServer, tmp_path: Path) -> None:
    state, url = tmp_path / "state", f"{files.origin}/store/llama"
    added = llmhostd("--state-dir", state, "models", "add", url + "?key=s3cret", "--ttft", "2")
    assert (added.returncode, added.stdout) == (0, 'llama is added: llmhostd run llama "..."\n')
    assert "llmhostd models load llama" in added.stderr
    (model,) = ModelTable(open_database(state)).all()
    assert (model.source, model.path, model.ttft_s) == (url, str(state / "models" / "llama"), 2.0)
    assert files.sent_bytes == 1
    assert "llama" in llmhostd("--state-dir", state, "models", "list").stdout
    assert "not here yet" in refused("--state-dir", state, "models", "verify", "llama", status=1)
    assert llmhostd("--state-dir", state, "models", "verify").returncode == 0
    assert llmhostd("--state-dir", state, "models", "add", url + "?key=s3cret").returncode == 0, "again"
    assert llmhostd("--state-dir", state, "models", "add", url + "?key=new").returncode == 0, "with a new key"
    remote = read_remote(state / "models" / "llama")
    assert remote is not None
    assert [one.url for one in remote.addresses] == [url + "?key=new"]
    other = ("models", "add", f"{files.origin}/store/other", "--name", "llama")
    assert "exists: `llmhostd models rm llama`" in refused("--state-dir", state, *other, status=1)
    assert "is deleted" in llmhostd("--state-dir", state, "models", "rm", "llama").stdout
    assert list((state / "models").iterdir()) == []


@pytest.mark.parametrize(
    ("address", "options", "says"),
    [
        ("file:///etc", (), "path: file: is not read; expected an https:, http:, peer: or s3: address"),
        ("{}/store/nothing", (), "the server answered 404"),
        (
            "http://127.0.0.1:1/store/llama",
            (),
            "http://127.0.0.1:1/store/llama/weights.llmhostd.json: cannot be fetched",
        ),
        (
            "peer://127.0.0.1:1/llama",
            (),
            "http://127.0.0.1:1/api/v1/models/llama/store/weights.llmhostd.json: cannot be",
        ),
        ("peer://127.0.0.1/a/b", (), "path: this address is none of a peer's model: peer://HOST:PORT/MODEL"),
        ("peer://s3cret@127.0.0.1/llama", (), "holds what may be a key; give that as --peer-key"),
        ("s3://key:s3cret@bucket/llama", (), "those of a bucket come from the environment or a profile"),
        ("s3://Bucket/llama", (), "path: this address is none of a store in a bucket: s3://BUCKET/PATH/NAME"),
        ("{}/store/llama", ("--quantize", "int8"), "--quantize is not for a URL"),
        ("{}/store/llama", ("--name", "no name"), "name: is 'no name'"),
        ("{}/store/llama", ("--compute", "f32", "--kv", "bf16"), "kv: bf16 does not go with compute f32"),
    ],
)
def test_what_cannot_be_added_is_said_in_a_line_and_leaves_nothing(
    files: FileServer, tmp_path: Path, address: str, options: tuple[str, ...], says: str
) -> None:
    done = llmhostd("--state-dir", tmp_path / "state", "models", "add", address.format(files.origin), *options)
    assert done.returncode in (1, 2)
    assert len(done.stderr.splitlines()) == 1
    assert says in done.stderr
    assert "s3cret" not in done.stderr
    assert not list((tmp_path / "state").rglob("*llama*"))
