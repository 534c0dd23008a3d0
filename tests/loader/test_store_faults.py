"""Is a conversion that goes wrong a clear error, with nothing lost and no half store, whatever goes wrong?"""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from goldens.seeded import seeded_checkpoint
from without_privileges import WITHOUT_PRIVILEGES

from llmhostd.domain.errors import CheckpointError, LlmhostdError, OperatorError
from llmhostd.domain.model import WeightFormat
from llmhostd.loader.convert import convert, is_copy_of
from llmhostd.loader.verify import verify

SIZES = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 8000, "max_position_embeddings": 512,
}  # fmt: skip
"""Blocks and chunks enough to be interrupted between."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = seeded_checkpoint(tmp_path_factory.mktemp("faults") / "source", SIZES, 3)
    (path / "tokenizer.json").write_text("{}")
    return path


@pytest.fixture
def own(tmp_path: Path, source: Path) -> Path:
    """A source that may be spoilt."""
    return Path(shutil.copytree(source, tmp_path / "own"))


def whole(store: Path, source: Path) -> None:
    """The store is what its source says, and nothing lies beside it."""
    verify(store, lambda *_: None)
    assert is_copy_of(store, source)
    assert [one.name for one in store.parent.iterdir() if one.name.startswith(".")] == []


def test_kills_at_any_moment_leave_nothing_but_what_the_next_one_takes_up(tmp_path: Path, source: Path) -> None:
    chance, store = random.Random(4), tmp_path / "stores" / "made"
    script = """
import sys, time
from pathlib import Path
from llmhostd.loader.convert import convert
def heard(done, total):
    print(done, flush=True)
    time.sleep(0.003)
convert(Path(sys.argv[1]), Path(sys.argv[2]), None, heard, heard)
"""
    kills = 0
    for _ in range(6):
        lines = chance.randrange(60)
        with subprocess.Popen(
            [sys.executable, "-c", script, str(source), str(store)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for _ in range(lines):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
        if store.exists():
            whole(store, source)
            break
        if store.parent.exists():
            assert [one.name for one in store.parent.iterdir()] in ([], [".made.partial"])
    assert kills
    if not store.exists():
        convert(source, store)
    whole(store, source)


def test_no_room_is_a_clear_error_and_leaves_nothing(tmp_path: Path, source: Path) -> None:
    store, before = tmp_path / "made", resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (1000, 30_000_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(OperatorError, match=rf"{store}: cannot be written: File too large"):
                convert(source, store)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert list(tmp_path.iterdir()) == []
    convert(source, store)
    whole(store, source)


@pytest.mark.parametrize(
    ("forbidden", "mode", "said"),
    [
        ("own/model.safetensors", 0, "{path}: cannot be read: Permission denied"),
        ("own/tokenizer.json", 0, "{path}: cannot be read: Permission denied"),
        ("own/config.json", 0, "{path}: cannot be read: Permission denied"),
        ("own", 0, "{path}/config.json: cannot be read: Permission denied"),
        ("own", 0o100, "{path}: cannot be read: Permission denied"),
        ("stores", 0, "{path}/made: cannot be written: Permission denied"),
    ],
)
def test_what_this_user_may_not_do_is_named(tmp_path: Path, own: Path, forbidden: str, mode: int, said: str) -> None:
    (tmp_path / "stores").mkdir()
    path = tmp_path / forbidden
    path.chmod(mode)
    script = f"""{WITHOUT_PRIVILEGES}
import sys
from pathlib import Path
from llmhostd.domain.errors import LlmhostdError
from llmhostd.loader.convert import convert
drop()
try:
    convert(Path({str(own)!r}), Path({str(tmp_path / "stores" / "made")!r}))
except LlmhostdError as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    path.chmod(0o755)
    assert ended.stdout.strip() == said.format(path=path), ended.stderr
    assert list((tmp_path / "stores").iterdir()) == []


def longer(file: Path) -> None:
    with file.open("ab") as stream:
        stream.write(b"more")


def shorter(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 5000)


def shortest(file: Path) -> None:
    os.truncate(file, 100)


def other(file: Path) -> None:
    new = file.with_suffix(".new")
    new.write_bytes(file.read_bytes())
    new.rename(file)


def one_byte(file: Path) -> None:
    with file.open("r+b") as stream:
        stream.seek(-100, os.SEEK_END)
        stream.write(b"x")


@pytest.mark.parametrize("change", [longer, shorter, shortest, other, one_byte])
@pytest.mark.parametrize("when", ["reading", "writing"])
def test_a_source_that_changes_meanwhile_is_found_out(
    tmp_path: Path, own: Path, change: Callable[[Path], None], when: str
) -> None:
    store, file = tmp_path / "stores" / "made", own / "model.safetensors"
    store.parent.mkdir()
    changed = threading.Event()

    def heard(done: int, total: int) -> None:
        if done > total / 2 and not changed.is_set():
            changed.set()
            change(file)

    with pytest.raises(CheckpointError, match=rf"{file}: (changed|was cut short) while it was copied; run again"):
        convert(own, store, None, *((None, heard) if when == "reading" else (heard, None)))
    assert list(store.parent.iterdir()) == []


def test_many_at_once_make_one_store(tmp_path: Path, source: Path) -> None:
    store, start = tmp_path / "made", threading.Barrier(6)
    said: list[str] = []

    def make(kind: WeightFormat | None) -> None:
        start.wait()
        try:
            convert(source, store, kind)
        except LlmhostdError as error:
            said.append(str(error))

    threads = [threading.Thread(target=make, args=(kind,)) for kind in (None, WeightFormat.INT8) * 3]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(said) == 5
    assert set(said) <= {f"{store}: is being made by another process", f"{store}: exists already"}
    verify(store, lambda *_: None)
    assert [one.name for one in tmp_path.iterdir()] == ["made"]


@pytest.mark.parametrize("file", ["own/config.json", "own/tokenizer.json", "own/chat_template.jinja", "made/weights"])
def test_what_is_there_is_a_copy_only_if_all_of_it_is(tmp_path: Path, own: Path, file: str) -> None:
    """Another template, or another constant in the configuration, is another model, whatever the weights are."""
    (own / ".record.json").write_text("{}")  # nobody's
    store = tmp_path / "made"
    for kind in (None, WeightFormat.INT8):
        convert(own, store, kind)
        assert is_copy_of(store, own, kind)
        assert not is_copy_of(store, own, WeightFormat.INT8 if kind is None else None)
        match file.split("/"):
            case [_, "config.json"]:
                config = json.loads((own / "config.json").read_text())
                (own / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.25}))
            case [_, "weights"]:
                one_byte(store / "weights.llmhostd")
            case _:
                (tmp_path / file).write_text("{ }")
        assert not is_copy_of(store, own, kind)
        shutil.rmtree(store)
        (own / "chat_template.jinja").unlink(missing_ok=True)
        (own / "config.json").write_text(json.dumps(SIZES))
        (own / "tokenizer.json").write_text("{}")


def test_a_damaged_store_is_not_made_smaller(tmp_path: Path, source: Path) -> None:
    convert(source, tmp_path / "made")
    one_byte(tmp_path / "made" / "weights.llmhostd")
    with pytest.raises(CheckpointError, match=r"block `head`, chunk [0-9]+ .* is damaged"):
        convert(tmp_path / "made", tmp_path / "small", WeightFormat.INT8)
    assert [one.name for one in tmp_path.iterdir()] == ["made"]
