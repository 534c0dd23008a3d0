"""How does a checkpoint become one that is made for loading?

Once, when it is added or pulled (ServerlessLLM §4.1): its tensors are laid out in blocks with checksums, quantised on
the way if that is wanted, with tokenizer, chat template and settings beside. The source is only read.
"""

import json
from pathlib import Path

from llmhostd.checkpoints.quantization import Quantization, quantization_config
from llmhostd.domain.errors import CheckpointError
from llmhostd.domain.model import WeightFormat
from llmhostd.loader.quantize import choose, copied, quantized
from llmhostd.loader.safetensors import CONFIG_FILE, describe, read_json
from llmhostd.loader.source import Progress, Source
from llmhostd.loader.store_index import DATA_FILE, is_store, read_index
from llmhostd.loader.store_writer import write_store
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
    if is_store(source):
        verify(source, reading or (lambda *_: None))
    with Source(source) as opened:
        quantization = choose(opened, kind) if kind else None
        planned = quantized(opened, quantization) if quantization else copied(opened)

        def companions(directory: Path) -> None:
            _copy_companions(source, directory, quantization)
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
    """Whether `convert` would make what is there already. Reads the source; `reading` hears how far."""
    if not is_store(store):
        return False
    with Source(source) as opened:
        weights = kind or opened.description.weights
        return describe(store).weights is weights and read_index(store).source == opened.files(reading)


def _copy_companions(source: Path, directory: Path, quantization: Quantization | None) -> None:
    config = read_json(source / CONFIG_FILE)
    if quantization:
        config |= {"quantization_config": quantization_config(quantization)}
    (directory / CONFIG_FILE).write_text(json.dumps(config, indent=2))
    for file in sorted(source.iterdir()):
        about_weights = file.name.startswith((CONFIG_FILE, DATA_FILE)) or ".safetensors" in file.name
        about_weights = about_weights or file.name.endswith(".index.json")
        if file.suffix in _COMPANIONS and not about_weights and file.is_file():
            _copy(file, directory / file.name)


def _copy(file: Path, destination: Path) -> None:
    """Copy a small file; what cannot be read is the checkpoint's fault, what cannot be written is not."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error
    destination.write_bytes(content)
