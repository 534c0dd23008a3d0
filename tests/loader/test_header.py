import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_safetensors import entry, raw_file

from llmhostd.domain.errors import CheckpointError
from llmhostd.loader.header import read_header


def test_places_are_offsets_into_the_file(tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, "a": entry("F32", [2, 3], 0, 24), "b": entry("U8", [], 24, 25)}
    file = raw_file(tmp_path / "x", header, bytes(range(25)))
    tensors = read_header(file)
    assert set(tensors) == {"a", "b"}
    assert file.read_bytes()[tensors["b"].begin : tensors["b"].end] == bytes([24])
    assert tensors["a"].shape == (2, 3)


@pytest.mark.parametrize(
    ("header", "data", "says"),
    [
        (b"{", b"", "header is not JSON"),
        (b"\xff\xfe", b"", "header is not JSON"),
        (b"[" * 100_000, b"", "header is not JSON"),
        ([1], b"", "header is not a JSON object"),
        (b'{"a": {}, "a": {}}', b"", "names `a` twice"),
        ({"a": 7}, b"", "tensor `a`: entry is not an object"),
        ({"a": entry(["F32"], [1], 0, 4)}, b"1234", "tensor `a`: dtype ['F32'] is not a word"),
        ({"a": entry("F4", [1], 0, 5)}, b"1234", "is truncated: tensor `a` ends at byte"),
        ({"a": {"dtype": "F32", "shape": [1]}}, b"1234", "tensor `a`: shape or data_offsets are malformed"),
        ({"a": entry("F32", [-1], 0, 4)}, b"1234", "tensor `a`: shape or data_offsets are malformed"),
        ({"a": entry("F32", [True], 0, 4)}, b"1234", "tensor `a`: shape or data_offsets are malformed"),
        ({"a": entry("F32", [1.0], 0, 4)}, b"1234", "tensor `a`: shape or data_offsets are malformed"),
        ({"a": entry("F32", [1], 4, 0)}, b"1234", "tensor `a`: shape or data_offsets are malformed"),
        ({"a": entry("F32", [2], 0, 4)}, b"1234", "tensor `a`: 4 bytes are stored, F32 [2] needs 8"),
        ({"a": entry("F32", [1 << 40, 1 << 40], 0, 4)}, b"1234", "tensor `a`: 4 bytes are stored"),
        ({"a": entry("F32", [2], 0, 8)}, b"1234", "is truncated: tensor `a` ends at byte"),
        (
            {"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 2, 6)},
            b"123456",
            "tensors `a` and `b` overlap",
        ),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, header: object, data: bytes, says: str) -> None:
    file = raw_file(tmp_path / "model.safetensors", header, data)
    with pytest.raises(CheckpointError) as caught:
        read_header(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert says in str(caught.value)


def test_a_type_that_is_not_known_here_may_lie_there(tmp_path: Path) -> None:
    """Whoever needs the tensor says that it cannot be used; nobody may."""
    file = raw_file(tmp_path / "x", {"a": entry("F4", [6], 0, 3), "b": entry("F32", [1], 3, 7)}, b"1234567")
    assert {name: one.dtype for name, one in read_header(file).items()} == {"a": "F4", "b": "F32"}


@pytest.mark.parametrize("content", [b"", b"1234567", b"\x10" + bytes(7), b"\xff" * 8, b"\x10" + bytes(7) + b"{"])
def test_a_file_too_short_for_its_header(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="is truncated"):
        read_header(file)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12\n", "`git lfs pull` brings them"),
        (b"<!doctype html><title>404 Not Found</title>", "is not safetensors: it begins with b'<!doctype html>"),
    ],
)
def test_what_often_lies_where_weights_should_be_is_called_what_it_is(
    tmp_path: Path, content: bytes, says: str
) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_header(file)
    assert says in str(caught.value)


def test_a_huge_header_is_not_read(tmp_path: Path) -> None:
    file = raw_file(tmp_path / "model.safetensors", b"", header_bytes=100_000_001)
    with file.open("ab") as stream:
        stream.truncate(100_000_100)  # sparse: takes no disk
    with pytest.raises(CheckpointError, match="at most 100000000 are read"):
        read_header(file)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        read_header(tmp_path / "model.safetensors")


def test_what_is_no_file_is_no_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for file in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(CheckpointError) as caught:
            read_header(file)
        assert str(caught.value) == f"{file}: is not a plain file"


VALID = json.dumps({"a": entry("F32", [2], 0, 8), "b": entry("BF16", [3], 8, 14)}).encode()


@given(st.integers(0, len(VALID) - 1), st.integers(0, 255), st.integers(0, 14))
def test_damage_never_ends_in_another_error(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int, data_bytes: int
) -> None:
    damaged = VALID[:place] + bytes([value]) + VALID[place + 1 :]
    file = raw_file(tmp_path_factory.getbasetemp() / "damaged.safetensors", damaged, bytes(data_bytes))
    size = file.stat().st_size
    try:
        tensors = read_header(file)
    except CheckpointError as error:
        assert str(file) in str(error)
    else:
        assert all(8 + len(VALID) <= one.begin <= one.end <= size for one in tensors.values())
