"""Whose tokenizers are kept in memory?

Reading one takes up to a second and tens of MB, so those in use are kept, least recently used out first, and models
whose files are the same, as those of one family, share what was read.
"""

import threading
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from llmhostd.text.template_process import TemplateProcess
from llmhostd.text.tokenizer import ModelTokenizer, Vocabulary, read_tokenizer

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
        self._entries: dict[Path, ModelTokenizer] = {}
        """In order of use, least recent first."""
        self._vocabularies: WeakValueDictionary[bytes, Vocabulary] = WeakValueDictionary()
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
            made = read_tokenizer(checkpoint, model, self._process, base, self._vocabularies)
            with self._lock:
                self._entries[checkpoint] = made
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
        """Return the estimated bytes of all tokenizers kept; what several share counts once."""
        with self._lock:
            return self._held_bytes()

    def _touch(self, checkpoint: Path) -> ModelTokenizer | None:
        kept = self._entries.pop(checkpoint, None)
        if kept is not None:
            self._entries[checkpoint] = kept
        return kept

    def _held_bytes(self) -> int:
        kept = {id(one.vocabulary): one.vocabulary.file_bytes for one in self._entries.values()}
        return sum(kept.values()) * _BYTES_PER_FILE_BYTE

    def _trim(self) -> None:
        while self._held_bytes() > self._policy.tokenizer_cache_bytes and len(self._entries) > 1:
            del self._entries[next(iter(self._entries))]
