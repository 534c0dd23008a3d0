"""Where does each tensor lie in a file that is made for loading? (ServerlessLLM §4.1; blocks: λScale §5.)

One data file holds all tensors in the order of computation, cut into blocks: the embedding, runs of layers, the head.
A block is contiguous and begins at a multiple of 4 KiB, so that it can be read past the page cache, sent and loaded as
one piece; inside it every tensor begins at a multiple of 64 bytes, so that it can be used where it lies. Each block is
cut into chunks with a checksum each. An index beside it says all of this, and where it came from.

An index is not trusted: `check` holds it against the file's size before anything is mapped.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from llmhostd.checkpoints.dtypes import DTYPE_BYTES, stored_bytes
from llmhostd.checkpoints.tensors import Module
from llmhostd.domain.errors import CheckpointError
from llmhostd.domain.words import Word

FORMAT = 1
BLOCK_ALIGN_BYTES = 4096
"""What reading past the page cache asks of offsets, lengths and addresses."""
TENSOR_ALIGN_BYTES = 64
CHUNK_BYTES = 8 << 20
"""What one read fetches and one checksum covers."""
LEAST_LAYERS_BYTES = 64 << 20
"""A run of layers is at least this large: several chunks, so that several threads have something to read."""


class WantedTensor(Word):
    """A tensor that a file is to hold."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    module: Module
    layer: int | None


class PlacedTensor(Word):
    """A tensor and where it lies: offsets into the data file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Block(Word):
    """A run of modules that is read, sent and loaded as one piece. `end` is a multiple of `BLOCK_ALIGN_BYTES`."""

    name: str
    """`embedding`, `layers 0-7` or `head`."""
    begin: int
    end: int
    tensors: tuple[PlacedTensor, ...]
    checksums: tuple[str, ...] = ()
    """XXH3-128 of each chunk, in hex."""

    def chunks(self, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[int, int]]:
        """Offsets (begin, end) of its chunks; the last may be shorter."""
        for begin in range(self.begin, self.end, chunk_bytes):
            yield begin, min(begin + chunk_bytes, self.end)


class StoredChunk(Word):
    """A piece of the data file that has a checksum of its own."""

    block: str
    place: int
    """Its number within its block."""
    begin: int
    end: int
    checksum: str


class SourceFile(Word):
    """A file that a store was made from, or that lies in it beside the weights."""

    name: str
    size_bytes: int
    checksum: str
    """XXH3-128 of all of it, in hex."""


class StoreIndex(Word):
    """All that is known of a data file without reading it."""

    format: int
    chunk_bytes: int
    data_bytes: int
    blocks: tuple[Block, ...]
    source: tuple[SourceFile, ...]
    companions: tuple[SourceFile, ...] = ()
    """What lies beside it: config, tokenizer, chat template."""

    def tensors(self) -> Iterator[PlacedTensor]:
        """All of them, in order."""
        for block in self.blocks:
            yield from block.tensors

    def chunks(self) -> Iterator[StoredChunk]:
        """All of them, in order."""
        for block in self.blocks:
            for place, (begin, end) in enumerate(block.chunks(self.chunk_bytes)):
                yield StoredChunk(block=block.name, place=place, begin=begin, end=end, checksum=block.checksums[place])


def lay_out(wanted: Sequence[WantedTensor], least_layers_bytes: int = LEAST_LAYERS_BYTES) -> tuple[Block, ...]:
    """Place tensors, given in the order of computation. Blocks have no checksums yet."""
    blocks: list[Block] = []
    at = 0
    for name, tensors in _runs(wanted, least_layers_bytes):
        begin, placed = at, []
        for one in tensors:
            at = _aligned(at, TENSOR_ALIGN_BYTES)
            end = at + stored_bytes(one.dtype, one.shape)
            placed.append(PlacedTensor(name=one.name, dtype=one.dtype, shape=one.shape, begin=at, end=end))
            at = end
        at = _aligned(at, BLOCK_ALIGN_BYTES)
        blocks.append(Block(name=name, begin=begin, end=at, tensors=tuple(placed)))
    return tuple(blocks)


def check(index: StoreIndex, where: str, file_bytes: int) -> None:
    """Raise CheckpointError, naming the file `where` and the field, unless the index can be true of such a file."""
    if index.format != FORMAT:
        raise CheckpointError(f"{where}: `format` is {index.format}; this version reads {FORMAT}: convert it again")
    if index.chunk_bytes <= 0 or index.chunk_bytes % BLOCK_ALIGN_BYTES:
        raise CheckpointError(f"{where}: `chunk_bytes` is {index.chunk_bytes}, not a multiple of {BLOCK_ALIGN_BYTES}")
    if index.data_bytes != file_bytes:
        raise CheckpointError(f"{where}: `data_bytes` is {index.data_bytes}, but the data file has {file_bytes}")
    at, names = 0, set[str]()
    for block in index.blocks:
        if block.begin != at or block.end < block.begin or block.end % BLOCK_ALIGN_BYTES:
            raise CheckpointError(f"{where}: block `{block.name}` lies at {block.begin} to {block.end}, not from {at}")
        at = block.end
        if len(block.checksums) != -(-(block.end - block.begin) // index.chunk_bytes):
            raise CheckpointError(f"{where}: block `{block.name}` has {len(block.checksums)} checksums for its chunks")
        _check_tensors(block, where, names)
    if at != file_bytes:
        raise CheckpointError(f"{where}: its blocks end at byte {at}, the data file at {file_bytes}")


def _check_tensors(block: Block, where: str, names: set[str]) -> None:
    at = block.begin
    for one in block.tensors:
        if one.name in names:
            raise CheckpointError(f"{where}: names tensor `{one.name}` twice")
        names.add(one.name)
        if one.dtype not in DTYPE_BYTES or any(extent < 0 for extent in one.shape):
            raise CheckpointError(f"{where}: tensor `{one.name}` is {one.dtype} {list(one.shape)}, which is not known")
        fits = at <= one.begin <= one.end <= block.end and one.begin % TENSOR_ALIGN_BYTES == 0
        if not fits or one.end - one.begin != stored_bytes(one.dtype, one.shape):
            raise CheckpointError(f"{where}: tensor `{one.name}` does not lie where its shape and its block allow")
        at = one.end


def _runs(wanted: Sequence[WantedTensor], least_bytes: int) -> Iterator[tuple[str, list[WantedTensor]]]:
    """Cut into the embedding, runs of whole layers of at least so many bytes, and the head."""
    first, last, run, size = 0, 0, list[WantedTensor](), 0
    for (module, layer), group in groupby(wanted, key=lambda one: (one.module, one.layer)):
        tensors = list(group)
        if module is not Module.LAYER or layer is None:
            if run:
                yield f"layers {first}-{last}", run
                run, size = [], 0
            yield str(module), tensors
            continue
        first, last = (first if run else layer), layer
        run += tensors
        size += sum(stored_bytes(one.dtype, one.shape) for one in tensors)
        if size >= least_bytes:
            yield f"layers {first}-{last}", run
            run, size = [], 0
    if run:
        yield f"layers {first}-{last}", run


def _aligned(at: int, step: int) -> int:
    return -(-at // step) * step
