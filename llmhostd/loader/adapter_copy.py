"""How does the copy of an adapter appear whole or not at all?

Adapters are a few MB and are served as they came; a copy keeps them where nobody else changes them. What it computes is
known by its identity (`loader.adapter`).
"""

import filecmp
import shutil
from pathlib import Path

from llmhostd.domain.errors import OperatorError
from llmhostd.loader.adapter import CONFIG_FILE, WEIGHTS_FILE
from llmhostd.loader.store_directory import making

COPIED = (
    CONFIG_FILE, WEIGHTS_FILE, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "generation_config.json", "chat_template.jinja",
)  # fmt: skip


def copy_adapter(source: Path, destination: Path) -> None:
    """Copy what is served of an adapter to a directory that is not there yet.

    Raises OperatorError, also when somebody else makes it at this moment.
    """
    with making(destination) as partial:
        for left in partial.iterdir():
            left.unlink()  # of a copy that was killed, perhaps of another source
        for name in COPIED:
            if (source / name).is_file():
                _copy_file(source / name, partial / name)


def is_adapter_copy(destination: Path, source: Path) -> bool:
    """Whether everything that is served of an adapter is in a directory already, byte for byte."""
    there, here = ({name for name in COPIED if (place / name).is_file()} for place in (destination, source))
    same = there == here and bool(here)
    return same and all(filecmp.cmp(destination / name, source / name, shallow=False) for name in here)


def _copy_file(source: Path, destination: Path) -> None:
    try:
        reading = source.open("rb")
    except OSError as error:
        raise OperatorError(f"{source}: {error.strerror}") from error
    with reading, destination.open("wb") as written:
        shutil.copyfileobj(reading, written, 1 << 20)
