"""What text may be shown after each token, when a character can span several?

Two decoders with one face. Byte-level vocabularies (GPT-2's alphabet: Llama 3, Qwen, the demo models) are bytes, so a
UTF-8 decoder with a state is exact: the pieces add up to the decoding of the whole, even for broken sequences. Others
(SentencePiece's `▁` and byte fallback) decode a window that begins at a settled token, and show what is new in it.
"""

import codecs
from functools import cache
from typing import Protocol

from tokenizers import Tokenizer

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_LONGEST_CHARACTER_TOKENS = 8
"""A character has at most 4 bytes; a longer unfinished sequence never becomes one."""


class Detokenizer(Protocol):
    """Text of one stream of tokens."""

    def push(self, token_id: int) -> str:
        """Add a token; return the new text up to the last whole character. Special and unknown tokens have none."""
        ...

    def flush(self) -> str:
        """End the stream; return what an unfinished character decodes to."""
        ...


class ByteLevelDetokenizer:
    """Exact and constant in time per token. `texts`: id -> bytes, without special tokens."""

    def __init__(self, texts: dict[int, bytes]) -> None:
        self._texts = texts
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._texts.get(token_id, b""))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any decoder that tokenizer.json may name."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._settled = 0
        """Tokens of the window whose text was shown. They stay, because a decoder may treat a first token apart."""

    def push(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._new_text()
        unfinished = text.endswith(_BROKEN) and len(self._window) - self._settled < _LONGEST_CHARACTER_TOKENS
        if not text or unfinished:
            return ""
        return self._settle(text)

    def flush(self) -> str:
        return self._settle(self._new_text())

    def _new_text(self) -> str:
        shown = self._tokenizer.decode(self._window[: self._settled], skip_special_tokens=True)
        return self._tokenizer.decode(self._window, skip_special_tokens=True)[len(shown) :]

    def _settle(self, text: str) -> str:
        self._window = self._window[self._settled :]
        self._settled = len(self._window)
        return text


def byte_level_texts(tokenizer: Tokenizer) -> dict[int, bytes]:
    """Map every token that is not special to its bytes, as the byte-level decoder does."""
    special = {token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    return {token_id: _bytes_of(text) for text, token_id in vocab.items() if token_id not in special}


def _bytes_of(token: str) -> bytes:
    alphabet = _byte_alphabet()
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:  # an added token with characters of its own
        return token.encode()


@cache
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's map: printable Latin-1 bytes stand for themselves, the others for U+0100 onwards, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}
