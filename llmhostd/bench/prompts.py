"""What do the callers say, at the length that was asked for?

A prompt is random words. How many words make how many tokens differs by tokenizer, so two probes of known word counts
give a straight line per model: base tokens (template, BOS) and tokens per word.
"""

from collections.abc import Sequence

import numpy as np

from llmhostd.bench.schedule import Stream, stream
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.words import Word

WORDS = (  # noqa: SIM905 - as a list literal this is 170 lines
    "water house people light number sound place world school father mother city earth thought head under story"
    " paper group music river second book carry science eat room friend began idea fish mountain north once base"
    " hear horse cut sure watch color face wood main enough plain girl usual young ready above ever red list though"
    " feel talk bird soon body dog family direct leave song measure door product black short class wind question"
    " happen complete ship area half rock order fire south problem piece told knew pass since top whole king space"
    " best hour better true during hundred five remember step early hold west ground interest reach fast verb sing"
    " listen six table travel less morning ten simple several vowel toward war lay against pattern slow center love"
    " person money serve appear road map rain rule govern pull cold notice voice unit power town fine certain fly"
    " fall lead cry dark machine note wait plan figure star box noun field rest correct able pound done beauty drive"
).split()

PROBE_WORDS = (16, 96)
"""Word counts of the two probes: enough for a slope, and short enough for models of little context."""


class TokenScale(Word):
    """How many tokens a prompt of n words has, by a server's own count: base_tokens + tokens_per_word * n."""

    base_tokens: float
    tokens_per_word: float

    def words(self, tokens: int) -> int:
        """Words that make about that many tokens; at least one."""
        return max(1, round((tokens - self.base_tokens) / self.tokens_per_word))


def scale_from_probes(counts: Sequence[int]) -> TokenScale:
    """The line through the token counts of prompts of `PROBE_WORDS` words."""
    (few, many), (few_tokens, many_tokens) = PROBE_WORDS, counts
    if many_tokens <= few_tokens:
        raise OperatorError(
            f"the server counts {few_tokens} tokens for {few} words and {many_tokens} for {many}: "
            "give --tokens-per-word and --no-warmup instead"
        )
    slope = (many_tokens - few_tokens) / (many - few)
    return TokenScale(base_tokens=few_tokens - slope * few, tokens_per_word=slope)


class PromptWriter:
    """Writes prompts. `shared` words at the beginning are the same in all prompts."""

    def __init__(self, seed: int, shared: int = 0, purpose: Stream = Stream.WORDS) -> None:
        self._rng = stream(seed, purpose)
        self._prefix = self._draw(shared)

    def write(self, words: int) -> str:
        """A prompt of exactly that many words, the shared ones first."""
        own = self._draw(max(0, words - len(self._prefix)))
        return " ".join([*self._prefix, *own][:words])

    def _draw(self, words: int) -> list[str]:
        return [WORDS[int(index)] for index in self._rng.integers(0, len(WORDS), size=words, dtype=np.int64)]
