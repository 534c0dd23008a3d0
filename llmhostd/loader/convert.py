"""How does a checkpoint become one that is made for loading?

Once, when it is added or pulled (ServerlessLLM §4.1): its tensors are laid out in blocks with checksums, quantised on
the way if that is wanted, with tokenizer, chat template and settings beside. The source is only read.
"""

import json
import shutil
from pathlib import Path

from llmhostd.checkpoints.layout import SourceFile
from llmhostd.checkpoints.quantization import Quantization, quantization_config
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.model import WeightFormat
from llmhostd.loader.checksum import file_checksum
from llmhostd.loader.quantize import choose, copied, quantized
from llmhostd.loader.safetensors import CONFIG_FILE, Checkpoint, describe, open_checkpoint, read_json
from llmhostd.loader.store_index import is_store, read_index
from llmhostd.loader.store_writer import Progress, write_store

_COMPANIONS = (".json", ".jinja", ".txt", ".model")
"""Suffixes of what is copied beside the weights: tokenizer, chat template, generation settings."""


def convert(
    source: Path, destination: Path, kind: WeightFormat | None = None, progress: Progress | None = None
) -> None:
    """Write the checkpoint at `source` to the new directory `destination`, made for loading; `kind`: quantised so.

    Raises CheckpointError when the source is damaged or cannot be quantised, OperatorError when the destination cannot
    be written. An interrupted conversion is taken up by the next.
    """
    checkpoint = open_checkpoint(source)
    quantization = choose(checkpoint, kind) if kind else None
    planned = quantized(checkpoint, quantization) if quantization else copied(checkpoint)
    write_store(
        destination,
        [wanted for wanted, _ in planned],
        {wanted.name: values for wanted, values in planned},
        _source_files(checkpoint),
        companions=lambda directory: _copy_companions(source, directory, quantization),
        progress=progress,
    )


def is_copy_of(store: Path, source: Path, kind: WeightFormat | None = None) -> bool:
    """Whether `convert` would make what is there already. Reads the source."""
    if not is_store(store):
        return False
    checkpoint = open_checkpoint(source)
    weights = kind or checkpoint.weights
    return describe(store).weights is weights and read_index(store).source == _source_files(checkpoint)


def _source_files(checkpoint: Checkpoint) -> tuple[SourceFile, ...]:
    files = sorted({one.file for one in checkpoint.description.tensors.values()})
    try:
        return tuple(
            SourceFile(name=file.name, size_bytes=file.stat().st_size, checksum=file_checksum(file)) for file in files
        )
    except OSError as error:
        raise OperatorError(f"{error.filename}: cannot be read: {error.strerror}") from error


def _copy_companions(source: Path, directory: Path, quantization: Quantization | None) -> None:
    config = read_json(source / CONFIG_FILE)
    if quantization:
        config |= {"quantization_config": quantization_config(quantization)}
    (directory / CONFIG_FILE).write_text(json.dumps(config, indent=2))
    for file in sorted(source.iterdir()):
        about_weights = file.name == CONFIG_FILE or ".safetensors" in file.name or file.name.endswith(".index.json")
        if file.suffix in _COMPANIONS and not about_weights and file.is_file():
            shutil.copyfile(file, directory / file.name)
