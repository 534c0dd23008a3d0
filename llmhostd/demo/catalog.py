"""Which demo models are there?"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from llmhostd.checkpoints.tensors import parameter_count
from llmhostd.demo.corpus import docstring_paragraphs, library_text, reference_paragraphs, reference_text
from llmhostd.demo.markov import learn
from llmhostd.demo.noise import make_checkpoint, noise_architecture
from llmhostd.demo.prose import prose_architecture, write_prose_model
from llmhostd.demo.vocabulary import ASSISTANT_ID, EOS_ID, train_tokenizer
from llmhostd.domain.model import Architecture

Written = Callable[[int], None]
"""Hears the bytes of each piece that was written."""

_LIBRARY_BYTES = 8 * 1024**2


@dataclass(frozen=True)
class DemoModel:
    """One demo model: what it is, about how large, and how its directory is filled."""

    name: str
    about: str
    """One line, for people."""
    stored_bytes: int
    """Of model.safetensors, for a progress bar; exact unless this Python's text gives a smaller vocabulary."""
    fill: Callable[[Path, Written], None]


def _prose(
    name: str,
    family: str,
    *,
    paragraphs: Callable[[], tuple[str, ...]],
    vocab: int,
    contexts: dict[int, int],
    layers: int,
) -> DemoModel:
    architecture = prose_architecture(family, vocab, sum(contexts.values()), layers)

    def fill(directory: Path, written: Written) -> None:
        texts = paragraphs()
        tokenizer = train_tokenizer(texts, vocab)
        encoded = tokenizer.encode_batch(list(texts), add_special_tokens=False)
        chain = learn(([ASSISTANT_ID, *one.ids, EOS_ID] for one in encoded), contexts)
        write_prose_model(directory, architecture, chain, tokenizer, written=written)

    millions = round(parameter_count(architecture) / 1e6)
    return DemoModel(
        name, f"{family}, {millions}M, says sentences of Python's manual", 2 * parameter_count(architecture), fill
    )


def _noise(name: str, architecture: Architecture, *, seed: int) -> DemoModel:
    def fill(directory: Path, written: Written) -> None:
        make_checkpoint(
            directory, architecture, seed=seed, tokenizer=_library_tokenizer(architecture.vocab), written=written
        )

    millions = round(parameter_count(architecture) / 1e6)
    return DemoModel(
        name, f"{architecture.family}, {millions}M, random weights: noise", 2 * parameter_count(architecture), fill
    )


def _library_tokenizer(vocab: int) -> Tokenizer:
    return train_tokenizer((reference_text(), *library_text(_LIBRARY_BYTES)), vocab)


def _all_paragraphs() -> tuple[str, ...]:
    return reference_paragraphs() + docstring_paragraphs()


_SMALL = noise_architecture(
    "qwen2", layers=4, hidden=256, heads=4, kv_heads=2, intermediate=704, vocab=8000, tied_embeddings=True
)
DEMO_MODELS: tuple[DemoModel, ...] = (
    _prose(
        "demo-prose-llama", "llama", paragraphs=reference_paragraphs, vocab=2000, contexts={2: 12000, 3: 2000}, layers=2
    ),
    _prose(
        "demo-prose-mistral", "mistral", paragraphs=_all_paragraphs, vocab=2000, contexts={2: 8000, 3: 4000}, layers=4
    ),
    _prose(
        "demo-prose-qwen3", "qwen3", paragraphs=reference_paragraphs, vocab=1200, contexts={2: 3000, 3: 1000}, layers=2
    ),
    _noise("demo-noise-qwen2-5m", _SMALL, seed=1),
    _noise("demo-noise-llama-156m", noise_architecture("llama"), seed=2),
)
"""What `make run` makes: names say the family and whether to expect words."""
