"""Stores that go bad under the hands of whoever loads them."""

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from goldens.families import CASES
from goldens.seeded import seeded_checkpoint

from llmhostd.domain.errors import CheckpointError
from llmhostd.loader.convert import convert
from llmhostd.loader.safetensors import Checkpoint, describe, open_checkpoint
from llmhostd.loader.store_index import DATA_FILE, INDEX_FILE

LLAMA = next(case for case in CASES if case.name == "llama")
NOBODY = 65534


@pytest.fixture
def store(tmp_path: Path) -> Path:
    source = seeded_checkpoint(tmp_path / "source", LLAMA.config, LLAMA.seed, LLAMA.dtype, LLAMA.shards)
    convert(source, tmp_path / "store")
    return tmp_path / "store"


@contextmanager
def without_privileges() -> Iterator[None]:
    """Be somebody whom file permissions bind."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.fixture
def open_to_all(store: Path) -> Iterator[Path]:
    """A store in a directory that anybody may enter."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield shutil.copytree(store, directory / "store")
    shutil.rmtree(directory)


@pytest.mark.usefixtures("leases")
def test_a_file_that_is_cut_short_after_it_was_opened(store: Path) -> None:
    expected = open_checkpoint(store).array("lm_head.weight").copy()
    opened = open_checkpoint(store)
    os.truncate(store / DATA_FILE, 4096)
    np.testing.assert_array_equal(opened.array("lm_head.weight"), expected)


def test_a_file_that_is_cut_short_by_who_had_it_open_before(store: Path) -> None:
    with (store / DATA_FILE).open("r+b") as file:
        opened = open_checkpoint(store)
        file.truncate(4096)
        with pytest.raises(
            CheckpointError, match=r"weights\.llmhostd: bytes \d+ to \d+ cannot be read: .* was cut short"
        ):
            opened.array("lm_head.weight")


def test_a_file_that_is_cut_short_while_it_is_opened(tmp_path: Path) -> None:
    source = seeded_checkpoint(tmp_path / "source", LLAMA.config, LLAMA.seed, LLAMA.dtype, LLAMA.shards)
    description = describe(source)
    os.truncate(source / "model.safetensors", 4096)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: was cut short while it was opened"):
        Checkpoint(description)


def test_a_file_that_is_cut_short_before_it_is_opened(store: Path) -> None:
    os.truncate(store / DATA_FILE, 4096)
    with pytest.raises(CheckpointError, match=r"`data_bytes` is \d+, but the data file has 4096"):
        open_checkpoint(store)


@pytest.mark.parametrize("name", [DATA_FILE, INDEX_FILE, "config.json"])
def test_a_file_that_may_not_be_read(open_to_all: Path, name: str) -> None:
    (open_to_all / name).chmod(0o000)
    with without_privileges(), pytest.raises(CheckpointError, match=rf"{name}: cannot be .*: Permission denied"):
        open_checkpoint(open_to_all)
    (open_to_all / name).chmod(0o644)
    with without_privileges():
        open_checkpoint(open_to_all).array("lm_head.weight")


def test_a_store_that_goes_while_it_is_read_is_read_to_its_end(store: Path) -> None:
    expected = open_checkpoint(store).array("lm_head.weight").copy()
    opened = open_checkpoint(store)
    shutil.rmtree(store)
    np.testing.assert_array_equal(opened.array("lm_head.weight"), expected)


def test_many_who_wait_for_one_store_see_the_same(store: Path) -> None:
    expected = open_checkpoint(store).array("lm_head.weight").copy()
    opened, same = open_checkpoint(store), list[bool]()

    def look() -> None:
        same.append(bool((opened.array("lm_head.weight") == expected).all()))

    readers = [threading.Thread(target=look) for _ in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert same == [True] * 8
