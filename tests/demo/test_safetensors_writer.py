import math
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmhostd.loader.header import read_header
from llmhostd.loader.safetensors_writer import PlannedTensor, to_bf16, write_safetensors


def planned(name: str, dtype: str, *pieces: np.ndarray, shape: tuple[int, ...]) -> PlannedTensor:
    def values() -> Iterator[np.ndarray]:
        yield from pieces

    return PlannedTensor(name, dtype, shape, values)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    first, second = np.arange(6, dtype=np.float32), np.array([1, 2, 3], np.int8)
    tensors = [
        planned("a", "F32", first[:4], first[4:], shape=(2, 3)),
        planned("b", "I8", second, shape=(3,)),
        planned("c", "BF16", to_bf16(first.reshape(2, 3).T), shape=(3, 2)),
    ]
    file, heard = tmp_path / "model.safetensors", []
    size = write_safetensors(file, tensors, metadata={"made_by": "a test"}, written=heard.append)
    stored, raw = read_header(file), file.read_bytes()
    assert size == len(raw)
    assert heard == [16, 8, 3, 12]
    assert list(stored) == ["a", "b", "c"]
    assert stored["a"].begin % 64 == 0
    assert np.array_equal(np.frombuffer(raw[stored["a"].begin : stored["a"].end], np.float32), first)
    assert raw[stored["b"].begin : stored["b"].end] == second.tobytes()
    bits = np.frombuffer(raw[stored["c"].begin : stored["c"].end], np.uint16).astype(np.uint32) << 16
    assert bits.view(np.float32).tolist() == [0, 3, 1, 4, 2, 5]


def test_values_that_do_not_fit_the_shape_are_an_error(tmp_path: Path) -> None:
    wrong = planned("a", "F32", np.zeros(5, np.float32), shape=(2, 3))
    with pytest.raises(ValueError, match="a: 20 bytes were made, its shape takes 24"):
        write_safetensors(tmp_path / "model.safetensors", [wrong])


@given(st.floats(width=32, allow_nan=False, allow_infinity=False, max_value=2.0**127, min_value=-(2.0**127)))
def test_bf16_is_the_nearest_value_and_ties_go_to_even(value: float) -> None:
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    below, above = bits & 0xFFFF0000, (bits & 0xFFFF0000) + 0x10000
    near = [struct.unpack("<f", struct.pack("<I", one))[0] for one in (below, above)]
    distances = [abs(value - one) for one in near]
    even = below if (below >> 16) % 2 == 0 else above
    best = even if math.isclose(*distances, rel_tol=0, abs_tol=0) else (below, above)[distances[0] > distances[1]]
    assert int(to_bf16(np.array([value], np.float32))[0]) == best >> 16
