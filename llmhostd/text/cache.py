"""Whose tokenizers are kept in memory?

Reading one takes up to a second and tens of MB, so those in use are kept, least recently used out first.
"""

import threading
from dataclasses import dataclass
from pathlib import Path

from llmhostd.text.template_process import TemplateProcess
from llmhostd.text.tokenizer import ModelTokenizer, read_tokenizer

_BYTES_PER_FILE_BYTE = 8
"""What a parsed tokenizer holds for each byte of tokenizer.json: measured 5-7 on byte-level BPE, rounded up."""


@dataclass(frozen=True)
class TokenizerPolicy:
    """How much memory tokenizers may take."""

    tokenizer_cache_bytes: int = 512 * 1024**2
    """Estimated bytes of all tokenizers kept; the one in use is kept even if it alone is larger."""


class TokenizerCache:
    """Tokenizers by checkpoint directory. Thread-safe: two callers of one model wait for one reading."""

    def __init__(self, process: TemplateProcess, policy: TokenizerPolicy | None = None) -> None:
        self._process = process
        self._policy = policy or TokenizerPolicy()
        self._entries: dict[Path, tuple[ModelTokenizer, int]] = {}
        """In order of use, least recent first."""
        self._lock = threading.Lock()
        self._reading: dict[Path, threading.Lock] = {}

    def get(self, model: str, checkpoint: Path, base: Path | None = None) -> ModelTokenizer:
        """Return the tokenizer of a checkpoint, reading it at need. Blocks then. Raises CheckpointError.

        `base`: see `read_tokenizer`.
        """
        with self._lock:
            kept = self._touch(checkpoint)
            reading = self._reading.setdefault(checkpoint, threading.Lock())
        if kept is not None:
            return kept
        with reading:
            with self._lock:
                kept = self._touch(checkpoint)
            if kept is not None:
                return kept
            made = read_tokenizer(checkpoint, model, self._process, base)
            size = _file_bytes(checkpoint, base) * _BYTES_PER_FILE_BYTE
            with self._lock:
                self._entries[checkpoint] = (made, size)
                self._trim()
            return made

    def kept(self, checkpoint: Path) -> ModelTokenizer | None:
        """Return the tokenizer of a checkpoint if it was read already."""
        with self._lock:
            return self._touch(checkpoint)

    def forget(self, checkpoint: Path) -> None:
        """Drop a tokenizer: the model was removed or its files changed."""
        with self._lock:
            self._entries.pop(checkpoint, None)

    def held_bytes(self) -> int:
        """Return the estimated bytes of all tokenizers kept."""
        with self._lock:
            return sum(size for _, size in self._entries.values())

    def _touch(self, checkpoint: Path) -> ModelTokenizer | None:
        entry = self._entries.pop(checkpoint, None)
        if entry is None:
            return None
        self._entries[checkpoint] = entry
        return entry[0]

    def _trim(self) -> None:
        held = sum(size for _, size in self._entries.values())
        while held > self._policy.tokenizer_cache_bytes and len(self._entries) > 1:
            oldest = next(iter(self._entries))
            held -= self._entries.pop(oldest)[1]


def _file_bytes(checkpoint: Path, base: Path | None) -> int:
    own = checkpoint / "tokenizer.json"
    file = own if base is None or own.is_file() else base / "tokenizer.json"
    return file.stat().st_size
