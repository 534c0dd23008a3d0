import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from goldens.families import CASES, Case
from goldens.seeded import seeded_checkpoint

from llmhostd.domain.errors import CheckpointError, OperatorError
from llmhostd.domain.model import WeightFormat
from llmhostd.loader.chunk_pool import ChunkPool
from llmhostd.loader.convert import convert
from llmhostd.loader.direct_reader import DirectReader, ReadPolicy
from llmhostd.loader.safetensors import open_checkpoint
from llmhostd.loader.store_index import DATA_FILE, INDEX_FILE, read_index
from llmhostd.loader.verify import verify

BY_NAME = {case.name: case for case in CASES}
LARGE = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 8000, "max_position_embeddings": 512,
}  # fmt: skip
"""More than one run of layers, and more than one chunk in it."""


def source_of(directory: Path, case: Case) -> Path:
    return seeded_checkpoint(directory, case.config, case.seed, case.dtype, case.shards)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seeded_checkpoint(tmp_path_factory.mktemp("large") / "source", LARGE, 3)


@pytest.mark.parametrize("name", ["llama", "llama-bf16", "llama-f16", "llama-sharded", "qwen2-tied", "qwen3"])
def test_a_store_holds_what_its_source_holds(tmp_path: Path, name: str) -> None:
    source = source_of(tmp_path / "source", BY_NAME[name])
    before = {file.name: file.read_bytes() for file in source.iterdir()}
    convert(source, tmp_path / "store")
    old, new = open_checkpoint(source), open_checkpoint(tmp_path / "store")
    assert new.description.tensors.keys() == old.description.tensors.keys()
    assert (new.architecture, new.weights) == (old.architecture, old.weights)
    for tensor in old.description.tensors:
        assert new.dtype(tensor) == old.dtype(tensor)
        np.testing.assert_array_equal(new.array(tensor), old.array(tensor))
        assert new.array(tensor).ctypes.data % 64 == 0
    assert {file.name: file.read_bytes() for file in source.iterdir()} == before


def test_a_flipped_bit_is_found_and_named_wherever_it_is(tmp_path: Path, large: Path) -> None:
    convert(large, tmp_path / "store")
    data, index = tmp_path / "store" / DATA_FILE, read_index(tmp_path / "store")
    assert len(index.blocks) > 3
    for block in index.blocks:
        victim = block.tensors[len(block.tensors) // 2]
        _flip(data, (victim.begin + victim.end) // 2)
        with pytest.raises(CheckpointError, match=f"block `{block.name}`, chunk [0-9]+ .* is damaged"):
            open_checkpoint(tmp_path / "store").array(victim.name)
        with pytest.raises(CheckpointError, match=f"block `{block.name}`, chunk [0-9]+ .* is damaged"):
            verify(tmp_path / "store", lambda *_: None)
        _flip(data, (victim.begin + victim.end) // 2)
    assert verify(tmp_path / "store", lambda *_: None) == index.data_bytes


def test_a_reader_asks_after_every_chunk_whether_others_compute(tmp_path: Path, large: Path) -> None:
    convert(large, tmp_path / "store")
    index, opened, source = read_index(tmp_path / "store"), open_checkpoint(tmp_path / "store"), open_checkpoint(large)
    asked: list[int] = []

    def crowded() -> bool:
        asked.append(opened.reader.read_bytes)
        return True

    opened.prefetch(crowded)
    for tensor in opened.description.tensors:
        np.testing.assert_array_equal(opened.array(tensor), source.array(tensor))
    assert asked[:-1] == [end for block in index.blocks for _, end in block.chunks(index.chunk_bytes)][: len(asked) - 1]


def test_what_comes_before_the_damage_can_be_used(tmp_path: Path, large: Path) -> None:
    convert(large, tmp_path / "store")
    index = read_index(tmp_path / "store")
    first, last = index.blocks[0].tensors[0], index.blocks[-1].tensors[-1]
    _flip(tmp_path / "store" / DATA_FILE, last.begin)
    opened = open_checkpoint(tmp_path / "store")
    np.testing.assert_array_equal(opened.array(first.name), open_checkpoint(large).array(first.name))
    with pytest.raises(CheckpointError, match="block `head`"):
        opened.array(last.name)


def test_a_store_can_be_made_smaller_and_knows_what_lies_beside_it(tmp_path: Path, large: Path) -> None:
    convert(large, tmp_path / "store")
    convert(tmp_path / "store", tmp_path / "small", WeightFormat.INT8)
    verify(tmp_path / "small", lambda *_: None)
    for store in (tmp_path / "store", tmp_path / "small"):
        beside = {one.name: one.size_bytes for one in read_index(store).companions}
        assert beside == {
            one.name: one.stat().st_size for one in store.iterdir() if one.name not in (DATA_FILE, INDEX_FILE)
        }


@pytest.mark.parametrize("change", ["truncated", "longer", "gone", "no json", "not ours"])
def test_a_store_that_is_not_whole_is_refused_when_it_is_opened(tmp_path: Path, change: str) -> None:
    convert(source_of(tmp_path / "source", BY_NAME["llama"]), tmp_path / "store")
    data, index = tmp_path / "store" / DATA_FILE, tmp_path / "store" / INDEX_FILE
    match change:
        case "truncated":
            os.truncate(data, data.stat().st_size - 4096)
        case "longer":
            os.truncate(data, data.stat().st_size + 4096)
        case "gone":
            data.unlink()
        case "no json":
            index.write_bytes(index.read_bytes()[:-100])
        case "not ours":
            index.write_text('{"format": "GGUF"}')
    with pytest.raises(CheckpointError, match=rf"{tmp_path}/store/weights\.llmhostd"):
        open_checkpoint(tmp_path / "store")


def test_what_is_left_of_a_store_is_no_other_checkpoint(tmp_path: Path) -> None:
    convert(source_of(tmp_path / "source", BY_NAME["llama"]), tmp_path / "store")
    (tmp_path / "store" / INDEX_FILE).unlink()
    for look in (open_checkpoint, lambda path: verify(path, lambda *_: None)):
        with pytest.raises(CheckpointError, match=rf"{tmp_path}/store/{INDEX_FILE}: cannot be read: No such file"):
            look(tmp_path / "store")


@pytest.mark.parametrize("change", ["other", "gone", "new", "pipe"])
def test_what_lies_beside_the_weights_is_held_against_what_it_was(tmp_path: Path, change: str) -> None:
    source = source_of(tmp_path / "source", BY_NAME["llama"])
    file = tmp_path / "store" / "chat_template.jinja"
    if change != "new":
        (source / file.name).write_text("{{ messages }}")
    convert(source, tmp_path / "store")
    match change:
        case "other":
            file.write_text("{{ massages }}")
        case "gone" | "pipe":
            file.unlink()
        case "new":
            file.write_text("{{ messages }}")
    if change == "pipe":
        os.mkfifo(file)
    with pytest.raises(CheckpointError, match=f"{file}: is not what it was when the store was made; remove the model"):
        verify(tmp_path / "store", lambda *_: None)


KILLED = """
import sys, time
from pathlib import Path
from llmhostd.loader.convert import convert
def heard(done, total):
    print(done, total, flush=True)
    time.sleep(0.02)
convert(Path(sys.argv[1]), Path(sys.argv[2]), progress=heard)
"""


def test_a_killed_conversion_leaves_no_half_store_and_is_taken_up(tmp_path: Path, large: Path) -> None:
    store = tmp_path / "store"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(large), str(store)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            done, total = map(int, line.split())
            if done > total * 0.7:
                process.send_signal(signal.SIGKILL)
                break
    assert not store.exists()
    heard: list[int] = []
    convert(large, store, progress=lambda done, _: heard.append(done))
    assert heard[0] > total * 0.2, "what was written before is not written again"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["store"]
    assert verify(store, lambda *_: None) == total


def test_what_a_killed_conversion_left_is_not_believed(tmp_path: Path, large: Path) -> None:
    whole, store = tmp_path / "whole", tmp_path / "store"
    convert(large, whole)
    partial = tmp_path / ".store.partial"
    shutil.copytree(whole, partial)
    (partial / INDEX_FILE).rename(partial / "unfinished.json")
    _flip(partial / DATA_FILE, read_index(whole).blocks[1].begin + 100)
    (partial / "chat_template.jinja").write_text("of another time")
    convert(large, store)
    assert (store / DATA_FILE).read_bytes() == (whole / DATA_FILE).read_bytes()
    assert not (store / "chat_template.jinja").exists()


def test_two_conversions_at_once_do_not_mix(tmp_path: Path, large: Path) -> None:
    store, said = tmp_path / "store", []
    begun = threading.Event()

    def slowly(*_: int) -> None:
        begun.set()
        time.sleep(0.01)

    first = threading.Thread(target=convert, args=(large, store, None, slowly))
    first.start()
    begun.wait()
    try:
        convert(large, store)
    except OperatorError as error:
        said.append(str(error))
    first.join()
    assert said == [f"{store}: is being made by another process"]
    verify(store, lambda *_: None)


def test_what_cannot_be_written_is_the_operators_error(tmp_path: Path) -> None:
    source = source_of(tmp_path / "source", BY_NAME["llama"])
    (tmp_path / "file").write_text("")
    with pytest.raises(OperatorError, match="cannot be written: Not a directory"):
        convert(source, tmp_path / "file" / "store")


@pytest.mark.parametrize("chunks", [1, 2, 8])
@pytest.mark.parametrize("direct", [True, False])
def test_chunks_come_in_order_through_a_bounded_pool(tmp_path: Path, large: Path, chunks: int, direct: bool) -> None:
    convert(large, tmp_path / "store", WeightFormat.INT8)
    data, index = tmp_path / "store" / DATA_FILE, read_index(tmp_path / "store")
    pool = ChunkPool(chunks, index.chunk_bytes)
    got = bytearray()
    for read in DirectReader(data, index, pool, ReadPolicy(threads=3, direct=direct)):
        assert read.begin == len(got)
        got += read.chunk.data
        pool.release(read.chunk)
    assert bytes(got) == data.read_bytes()
    assert pool.free == chunks


def test_a_reader_that_is_left_gives_everything_back(tmp_path: Path, large: Path) -> None:
    convert(large, tmp_path / "store")
    index = read_index(tmp_path / "store")
    pool = ChunkPool(3, index.chunk_bytes)
    threads = threading.active_count()
    for read in DirectReader(tmp_path / "store" / DATA_FILE, index, pool):
        pool.release(read.chunk)
        break
    assert pool.free == 3
    assert threading.active_count() == threads


def test_a_chunk_is_given_back_once() -> None:
    pool = ChunkPool(2, 4096)
    chunk = pool.allocate(unless=lambda: False)
    assert chunk is not None
    pool.release(chunk)
    with pytest.raises(ValueError, match="was given back already"):
        pool.release(chunk)


def _flip(file: Path, at: int) -> None:
    with file.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)[0]
        stream.seek(at)
        stream.write(bytes([byte ^ 16]))
        stream.flush()
        os.fsync(stream.fileno())
