import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmhostd.checkpoints.dtypes import DTYPE_BYTES, stored_bytes
from llmhostd.checkpoints.layout import (
    BLOCK_ALIGN_BYTES,
    CHUNK_BYTES,
    FORMAT,
    TENSOR_ALIGN_BYTES,
    Block,
    StoreIndex,
    WantedTensor,
    check,
    lay_out,
)
from llmhostd.checkpoints.tensors import Module
from llmhostd.domain.errors import CheckpointError

SHAPES = st.lists(st.integers(0, 40), min_size=1, max_size=2).map(tuple)


@st.composite
def models(draw: st.DrawFn) -> list[WantedTensor]:
    """Tensors in the order of computation: an embedding, some layers, a head."""
    places = [(Module.EMBEDDING, None), *((Module.LAYER, at) for at in range(draw(st.integers(0, 5))))]
    places.append((Module.HEAD, None))
    wanted = []
    for module, layer in places:
        for number in range(draw(st.integers(1, 3))):
            dtype, shape = draw(st.sampled_from(sorted(DTYPE_BYTES))), draw(SHAPES)
            name = f"{module}.{layer}.{number}"
            wanted.append(WantedTensor(name=name, dtype=dtype, shape=shape, module=module, layer=layer))
    return wanted


def index_of(blocks: tuple[Block, ...], chunk_bytes: int = CHUNK_BYTES) -> StoreIndex:
    summed = tuple(
        msgspec.structs.replace(one, checksums=tuple("0" for _ in one.chunks(chunk_bytes))) for one in blocks
    )
    return StoreIndex(
        format=FORMAT, chunk_bytes=chunk_bytes, data_bytes=blocks[-1].end if blocks else 0, blocks=summed, source=()
    )


@given(models(), st.sampled_from([1, 4096, 20_000, 1 << 30]))
def test_every_tensor_has_a_place_of_its_own(wanted: list[WantedTensor], least_bytes: int) -> None:
    blocks = lay_out(wanted, least_bytes)
    index = index_of(blocks)
    check(index, "index", index.data_bytes)
    placed = list(index.tensors())
    assert [(one.name, one.dtype, one.shape) for one in placed] == [(one.name, one.dtype, one.shape) for one in wanted]
    assert all(one.begin % TENSOR_ALIGN_BYTES == 0 for one in placed)
    assert all(one.end - one.begin == stored_bytes(one.dtype, one.shape) for one in placed)
    assert all(block.begin % BLOCK_ALIGN_BYTES == block.end % BLOCK_ALIGN_BYTES == 0 for block in blocks)
    covered = [piece for block in blocks for piece in block.chunks()]
    assert [begin for begin, _ in covered] == [0, *(end for _, end in covered)][: len(covered)]


@given(models(), st.sampled_from([1, 4096, 20_000, 1 << 30]))
def test_layers_are_whole_and_runs_large_enough(wanted: list[WantedTensor], least_bytes: int) -> None:
    blocks = lay_out(wanted, least_bytes)
    layer_of = {one.name: one.layer for one in wanted}
    runs = [block for block in blocks if block.name.startswith("layers")]
    layers = [sorted({layer_of[one.name] for one in run.tensors} - {None}, key=str) for run in runs]
    assert sum(map(len, layers)) == len({one.layer for one in wanted} - {None})
    sizes = [sum(one.end - one.begin for one in run.tensors) for run in runs]
    assert all(size >= least_bytes for size in sizes[:-1])


def good() -> StoreIndex:
    wanted = [
        WantedTensor(name="e", dtype="BF16", shape=(30, 8), module=Module.EMBEDDING, layer=None),
        WantedTensor(name="w", dtype="F32", shape=(8, 8), module=Module.LAYER, layer=0),
        WantedTensor(name="h", dtype="F32", shape=(8,), module=Module.HEAD, layer=None),
    ]
    return index_of(lay_out(wanted, 1))


def altered(block: int, **fields: object) -> StoreIndex:
    index = good()
    blocks = list(index.blocks)
    blocks[block] = msgspec.structs.replace(blocks[block], **fields)
    return msgspec.structs.replace(index, blocks=tuple(blocks))


def with_tensor(**fields: object) -> StoreIndex:
    index = good()
    return altered(1, tensors=(msgspec.structs.replace(index.blocks[1].tensors[0], **fields),))


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (msgspec.structs.replace(good(), format=9), "`format` is 9; this version reads 1"),
        (msgspec.structs.replace(good(), chunk_bytes=1000), "`chunk_bytes` is 1000, not a multiple of 4096"),
        (msgspec.structs.replace(good(), data_bytes=1), "`data_bytes` is 1, but the data file has 12288"),
        (altered(1, begin=0), "block `layers 0-0` lies at 0 to 8192, not from 4096"),
        (altered(2, end=1 << 40), "block `head` has 1 checksums for its chunks"),
        (altered(0, checksums=()), "block `embedding` has 0 checksums"),
        (with_tensor(begin=0, end=256), "tensor `w` does not lie where"),
        (with_tensor(shape=(1 << 40, 8)), "tensor `w` does not lie where"),
        (with_tensor(dtype="F7"), "tensor `w` is F7"),
        (with_tensor(shape=(-8, -8)), "which is not known"),
        (with_tensor(name="e"), "names tensor `e` twice"),
    ],
)
def test_an_index_that_cannot_be_true_is_refused(index: StoreIndex, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        check(index, "index", 12288)
