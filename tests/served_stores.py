"""A store that other hosts load: small, in many small chunks, so that it comes in many pieces."""

from pathlib import Path

import msgspec
from goldens.seeded import seeded_checkpoint

from llmhostd.checkpoints.layout import Block
from llmhostd.loader.checksum import checksum
from llmhostd.loader.convert import convert
from llmhostd.loader.store_index import DATA_FILE, INDEX_FILE, read_index

CHUNK_BYTES = 256 << 10
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 192, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 4000, "max_position_embeddings": 512,
}  # fmt: skip


def served_store(root: Path, tiny_models_dir: Path, name: str = "large", *, seed: int = 3, **changed: object) -> Path:
    """Make `root/models/name`: some 8 MB that answer like a model."""
    source = seeded_checkpoint(root / f"source-{name}", CONFIG | changed, seed)
    for file in (tiny_models_dir / "tiny-llama").iterdir():
        if file.name.startswith(("tokenizer", "chat_template")):
            (source / file.name).write_bytes(file.read_bytes())
    store = root / "models" / name
    convert(source, store)
    _cut_into_small_chunks(store)
    return store


def _cut_into_small_chunks(store: Path) -> None:
    index, data = read_index(store), memoryview((store / DATA_FILE).read_bytes())

    def cut(block: Block) -> Block:
        sums = (checksum(data[begin:end]) for begin, end in block.chunks(CHUNK_BYTES))
        return msgspec.structs.replace(block, checksums=tuple(sums))

    small = msgspec.structs.replace(index, chunk_bytes=CHUNK_BYTES, blocks=tuple(map(cut, index.blocks)))
    (store / INDEX_FILE).write_bytes(msgspec.json.encode(small))
