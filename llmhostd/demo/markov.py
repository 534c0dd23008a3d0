"""Which word follows which? A Markov chain of variable order: the longest known context decides.

Contexts of two and three tokens are kept only where they say something that the shorter one does not, best first, so
that the chain is as small as it may be told to be and still reads like its text.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

Context = tuple[int, ...]
"""Token ids, oldest first."""

_PRUNE_FROM = 12
"""Single tokens seen so often lose the successors they had once: those are where a word ends up in another."""


class Chain(NamedTuple):
    """Successors of each kept context: token id -> probability, adding up to 1."""

    successors: Mapping[Context, Mapping[int, float]]

    def of_length(self, length: int) -> list[Context]:
        """Kept contexts of so many tokens, the most telling first."""
        return [context for context in self.successors if len(context) == length]


def learn(documents: Iterable[Sequence[int]], most_contexts: Mapping[int, int]) -> Chain:
    """Count successors. `most_contexts`: how many contexts of each length > 1 to keep; single tokens are all kept."""
    longest = max(most_contexts, default=1)
    counts: dict[Context, Counter[int]] = {}
    for document in documents:
        for place in range(1, len(document)):
            for length in range(1, min(longest, place) + 1):
                context = tuple(document[place - length : place])
                counts.setdefault(context, Counter())[document[place]] += 1
    kept: dict[Context, Counter[int]] = {one: _pruned(found) for one, found in counts.items() if len(one) == 1}
    for length in range(2, longest + 1):
        telling = sorted(
            (-_gain(found, kept[context[1:]]), context)
            for context, found in counts.items()
            if len(context) == length and context[1:] in kept
        )
        kept |= {context: counts[context] for _, context in telling[: most_contexts.get(length, 0)]}
    return Chain({context: _probabilities(found) for context, found in kept.items()})


def _pruned(found: Counter[int]) -> Counter[int]:
    if found.total() < _PRUNE_FROM or max(found.values()) == 1:
        return found
    return Counter({token: times for token, times in found.items() if times > 1})


def _gain(found: Counter[int], shorter: Counter[int]) -> float:
    """Nats that this context saves over the shorter one on the text it was seen in."""
    total, shorter_total = found.total(), shorter.total()
    return sum(
        times * math.log(times / total * shorter_total / max(shorter[token], 0.5)) for token, times in found.items()
    )


def _probabilities(found: Counter[int]) -> dict[int, float]:
    total = found.total()
    return {token: times / total for token, times in sorted(found.items())}
