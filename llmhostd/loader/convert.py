"""How does a checkpoint become one that is made for loading?

Once, when it is added or pulled (ServerlessLLM §4.1): its tensors are laid out in blocks with checksums, quantised on
the way if that is wanted, with tokenizer, chat template and settings beside. The source is only read.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from llmhostd.checkpoints.quantization import Quantization, quantization_config
from llmhostd.domain.errors import CheckpointError
from llmhostd.domain.model import WeightFormat
from llmhostd.loader.checksum import checksum
from llmhostd.loader.plain_file import content, readable
from llmhostd.loader.quantize import choose, copied, quantized
from llmhostd.loader.safetensors import CONFIG_FILE, read_json
from llmhostd.loader.source import Progress, Source
from llmhostd.loader.store_index import DATA_FILE, is_store, read_index
from llmhostd.loader.store_writer import MOST_COMPANION_BYTES, companion_files, write_store
from llmhostd.loader.verify import verify

_COMPANIONS = (".json", ".jinja", ".txt", ".model")
"""Suffixes of what is copied beside the weights: tokenizer, chat template, generation settings."""


def convert(
    source: Path,
    destination: Path,
    kind: WeightFormat | None = None,
    progress: Progress | None = None,
    reading: Progress | None = None,
) -> None:
    """Write the checkpoint at `source` to the new directory `destination`, made for loading; `kind`: quantised so.

    `reading` hears how far the source is summed up, before `progress` hears what is written. Raises CheckpointError
    when the source is damaged, changes meanwhile or cannot be quantised, OperatorError when the destination cannot be
    written. An interrupted conversion is taken up by the next.
    """
    with Source(source) as opened:
        if is_store(source):
            verify(source, reading or (lambda *_: None))
        quantization = choose(opened, kind) if kind else None
        planned = quantized(opened, quantization) if quantization else copied(opened)

        def companions(directory: Path) -> None:
            for name, bytes_ in _companions(source, quantization):
                (directory / name).write_bytes(bytes_)
            opened.check_unchanged()

        write_store(
            destination,
            [wanted for wanted, _ in planned],
            {wanted.name: values for wanted, values in planned},
            opened.files(reading),
            companions=companions,
            progress=progress,
        )


def is_copy_of(store: Path, source: Path, kind: WeightFormat | None = None, reading: Progress | None = None) -> bool:
    """Whether what `convert` would make is there already, whole. Reads both; `reading` hears how far.

    Raises CheckpointError when the source is damaged, or cannot be quantised.
    """
    try:
        verify(store, reading or (lambda *_: None))
    except CheckpointError:
        return False
    with Source(source) as opened:
        quantization = choose(opened, kind) if kind else None
        beside = {one.name: one.checksum for one in companion_files(store)}
        wanted = {name: checksum(bytes_) for name, bytes_ in _companions(source, quantization)}
        return beside == wanted and read_index(store).source == opened.files(reading)


def _companions(source: Path, quantization: Quantization | None) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file that is to lie beside the weights. Raises CheckpointError."""
    config = read_json(source / CONFIG_FILE)
    if quantization:
        config |= {"quantization_config": quantization_config(quantization)}
    yield CONFIG_FILE, json.dumps(config, indent=2).encode()
    with readable(source):
        files = sorted(source.iterdir())
    for file in files:
        about_weights = file.name.startswith((".", CONFIG_FILE, DATA_FILE)) or ".safetensors" in file.name
        about_weights = about_weights or file.name.endswith(".index.json")
        if file.suffix in _COMPANIONS and not about_weights and file.is_file():
            yield file.name, content(file, MOST_COMPANION_BYTES)
