"""How does a model's text become token ids?

Everything is read from the checkpoint: tokenizer.json (the `tokenizers` library computes it), special tokens from
tokenizer_config.json, the ids that end an answer from generation_config.json and config.json.
"""

import json
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders

from llmhostd.domain.errors import CallerError, CheckpointError
from llmhostd.text.chat_template import TEMPLATE_FILE, ChatTemplate, read_templates
from llmhostd.text.detokenize import ByteLevelDetokenizer, Detokenizer, WindowDetokenizer, byte_level_texts
from llmhostd.text.template_process import TemplateProcess

_TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", TEMPLATE_FILE)
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class Vocabulary:
    """What one tokenizer.json says. Checkpoints whose files are the same byte for byte share it."""

    def __init__(self, tokenizer: Tokenizer, file_bytes: int) -> None:
        self.tokenizer = tokenizer
        self.byte_level = byte_level_texts(tokenizer) if isinstance(tokenizer.decoder, decoders.ByteLevel) else None
        self.file_bytes = file_bytes
        """Length of the file."""


Vocabularies = MutableMapping[bytes, Vocabulary]
"""Those in use, by SHA-256 of the file."""


class ModelTokenizer:
    """Text handling of one model. Thread-safe; `encode` computes in the caller's thread and releases the GIL."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        chat_template: ChatTemplate,
        special_tokens: Mapping[str, str],
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self.vocabulary = vocabulary
        self._tokenizer, self._byte_level = vocabulary.tokenizer, vocabulary.byte_level
        self.chat_template = chat_template
        self.special_tokens = dict(special_tokens)
        """`bos_token` and others, as text."""
        self.eos_token_ids = eos_token_ids
        """Ids that end an answer, ascending; may be empty."""
        self.vocab = self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return token ids. A rendered chat template already has its special tokens: pass False for it.

        Raises CallerError for text that no encoding can hold.
        """
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError as error:  # what the library makes of a lone surrogate
            raise CallerError("the text is not Unicode: it holds half of a surrogate pair") from error
        return ids

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return the text of whole answers; special tokens have none."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def detokenizer(self) -> Detokenizer:
        """Begin a stream of tokens."""
        return ByteLevelDetokenizer(self._byte_level) if self._byte_level else WindowDetokenizer(self._tokenizer)

    def token_bytes(self, token_id: int) -> bytes:
        """Return one token's own bytes, for `logprobs`; special tokens as they are written, unknown ids empty."""
        if self._byte_level is not None and token_id in self._byte_level:
            return self._byte_level[token_id]
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        return (self._tokenizer.decode([token_id], skip_special_tokens=False) or token).encode()


def has_text_files(folder: Path) -> bool:
    """Whether an adapter brings a tokenizer or a chat template of its own."""
    return any((folder / name).is_file() for name in _TEXT_FILES)


def read_tokenizer(
    checkpoint: Path,
    model: str,
    process: TemplateProcess,
    base: Path | None = None,
    known: Vocabularies | None = None,
) -> ModelTokenizer:
    """Read a checkpoint's text side. `model` names it in errors. Raises CheckpointError naming the file.

    `base`: where to find what an adapter does not bring itself. Its chat template may come from either, in whichever
    form. `known`: vocabularies that need not be read again; what is read is added.
    """
    places = (checkpoint, base) if base else (checkpoint,)
    file = _find(places, "tokenizer.json")
    if not file.is_file():
        raise CheckpointError(f"{file} is missing: a model needs its tokenizer (`tokenizer.model` alone is not read)")
    vocabulary = _read_vocabulary(file, {} if known is None else known)
    config = _read_json(_find(places, "tokenizer_config.json"))
    special = _special_tokens(config)
    template = ChatTemplate(model, _templates(places), special, process)
    return ModelTokenizer(
        vocabulary,
        chat_template=template,
        special_tokens=special,
        eos_token_ids=_eos_token_ids(places, vocabulary.tokenizer, special),
    )


def _read_vocabulary(file: Path, known: Vocabularies) -> Vocabulary:
    try:
        content = file.read_bytes()
        digest = sha256(content).digest()
        found = known.get(digest)
        if found is not None:
            return found
        tokenizer = Tokenizer.from_buffer(content)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error
    except Exception as error:
        raise CheckpointError(f"{file}: not a tokenizer: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    read = known[digest] = Vocabulary(tokenizer, len(content))
    return read


def _find(places: Sequence[Path], name: str) -> Path:
    """Return the first file of that name; where it should be if there is none."""
    return next((folder / name for folder in places if (folder / name).is_file()), places[-1] / name)


def _templates(places: Sequence[Path]) -> dict[str, str]:
    """Take the templates of the first place that has any."""
    for folder in places[:-1]:
        config = _read_json(folder / "tokenizer_config.json")
        if (folder / TEMPLATE_FILE).is_file() or config.get("chat_template") is not None:
            return read_templates(folder, config)
    return read_templates(places[-1], _read_json(places[-1] / "tokenizer_config.json"))


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Each is a string, or an object with `content` (an AddedToken as transformers stores it)."""
    found = {}
    for name in _SPECIAL_TOKENS:
        value = config.get(name)
        text = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _eos_token_ids(places: Sequence[Path], tokenizer: Tokenizer, special: Mapping[str, str]) -> tuple[int, ...]:
    """Union of what generation_config.json (or else config.json) and the tokenizer name: any of them ends an answer."""
    named = _read_json(_find(places, "generation_config.json")).get("eos_token_id")
    if named is None:
        named = _read_json(_find(places, "config.json")).get("eos_token_id")
    ids = {one for one in (named if isinstance(named, list) else [named]) if type(one) is int}
    own = tokenizer.token_to_id(special["eos_token"]) if "eos_token" in special else None
    return tuple(sorted(ids | ({own} if own is not None else set())))


def _read_json(file: Path) -> Mapping[str, Any]:
    """Return the file's object; empty when there is no file."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: must be a JSON object")
    return content
