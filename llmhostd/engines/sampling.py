"""Which token comes next, given the logits?

Order of operations as in vLLM: bias and penalties on the raw logits; then either the greatest, or temperature, min_p,
top_k, top_p (each on what the one before has left) and a draw. Log-probabilities are those of the raw logits.

Chance is an argument: output token n of a request is drawn from a hash of (seed, n), so a request that moved to another
instance, or was recomputed after a crash, goes on exactly as it would have.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from math import isfinite
from struct import Struct

import numpy as np

from llmhostd.domain.errors import CallerError
from llmhostd.domain.reports import TokenLogprobs
from llmhostd.domain.request import Sampling
from llmhostd.engines.interface import Floats, Int64s

GREEDY_TEMPERATURE = 1e-5
"""Below this the greatest logit is taken."""

_COUNTER = Struct("<QQ")
_CHUNK = 256
"""Weights summed at once when drawing from a whole vocabulary."""
_BUCKETS_PER_E = np.float32(16)
_BUCKETS = np.float32(512)
"""The last bucket is for all that is lighter than exp(-32) of the heaviest."""


class TokenSampler:
    """One request's way of drawing, and what it has drawn so far where that matters."""

    __slots__ = ("_bias", "_bias_ids", "_counts", "drawn", "greedy", "plain", "sampling")

    def __init__(self, sampling: Sampling, vocab: int, outputs: Iterable[int]) -> None:
        """`outputs` are the tokens drawn before the request came here. Raises CallerError for a bias beyond `vocab`."""
        for token in sampling.logit_bias:
            if not 0 <= token < vocab:
                raise CallerError(f"logit_bias: token {token} is not in 0..{vocab - 1}", field="logit_bias")
        outputs = tuple(outputs)
        penalised = bool(sampling.frequency_penalty or sampling.presence_penalty)
        self.sampling = sampling
        self.drawn = len(outputs)
        self.greedy = sampling.temperature < GREEDY_TEMPERATURE
        self._bias_ids = np.fromiter(sampling.logit_bias.keys(), np.int64)
        self._bias = np.fromiter(sampling.logit_bias.values(), np.float32)
        self._counts = Counter(outputs) if penalised else None
        self.plain = self.greedy and not penalised and not sampling.logit_bias
        """Whether the token is simply the greatest raw logit."""

    def record(self, token: int) -> None:
        """Note that `token` was the next output."""
        self.drawn += 1
        if self._counts is not None:
            self._counts[token] += 1

    def draw(self, logits: Floats) -> int:
        """The next token from one row of raw logits `[vocab]`, which is left as it is."""
        adjusted = self._adjust(logits)
        if self.greedy:
            return int(adjusted.argmax())
        scaled = (adjusted - adjusted.max()) / np.float32(self.sampling.temperature)
        return _draw(scaled, self.sampling, uniform(self.sampling.seed, self.drawn))

    def _adjust(self, logits: Floats) -> Floats:
        if self._counts is None and not len(self._bias_ids):
            return logits
        adjusted = logits.copy()
        adjusted[self._bias_ids] += self._bias
        if self._counts:
            ids = np.fromiter(self._counts.keys(), np.int64, len(self._counts))
            counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            adjusted[ids] -= self.sampling.frequency_penalty * counts + self.sampling.presence_penalty
        return adjusted


def draw_tokens(logits: Floats, samplers: Sequence[TokenSampler]) -> list[int | None]:
    """One token per row of `logits [S, vocab]`, recorded in its sampler; None where a row is not of numbers."""
    tokens: list[int | None] = []
    for row, (greatest, sampler) in enumerate(zip(logits.argmax(axis=1).tolist(), samplers, strict=True)):
        if not isfinite(logits[row, greatest]):  # what is no number anywhere in a row is its argmax
            tokens.append(None)
            continue
        token: int = greatest if sampler.plain else sampler.draw(logits[row])
        sampler.record(token)
        tokens.append(token)
    return tokens


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) that depends on nothing but `seed` and `index`."""
    digest = blake2b(_COUNTER.pack(seed & 0xFFFF_FFFF_FFFF_FFFF, index), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def token_logprobs(logits: Floats, token: int, top: int) -> TokenLogprobs:
    """Of one row of raw logits: the log-probability of `token`, and of the `top` likeliest."""
    greatest = logits.max()
    normaliser = greatest + np.log(np.exp(logits - greatest).sum())
    likeliest = _largest(logits, top)
    return TokenLogprobs(
        chosen=float(logits[token] - normaliser),
        top=tuple(zip(likeliest.tolist(), (logits[likeliest] - normaliser).tolist(), strict=True)),
    )


def _largest(values: Floats, count: int) -> Int64s:
    """Indices of the `count` largest, largest first; of equals the lower index first."""
    if not count:
        return np.empty(0, np.int64)
    if count < len(values):
        candidates = np.flatnonzero(values >= np.partition(values, -count)[-count])
    else:
        candidates = np.arange(len(values))
    return candidates[np.argsort(-values[candidates], kind="stable")[:count]]


def _draw(scaled: Floats, sampling: Sampling, chance: float) -> int:
    """Draw from `scaled`, logits over temperature whose greatest is 0."""
    floor = np.log(sampling.min_p) if sampling.min_p > 0 else -np.inf
    kept: Int64s | None = None
    if floor > -np.inf:
        kept = np.flatnonzero(scaled >= floor)
        scaled = scaled[kept]
    if 0 < sampling.top_k < len(scaled):
        largest = np.flatnonzero(scaled >= np.partition(scaled, -sampling.top_k)[-sampling.top_k])
        kept = largest if kept is None else kept[largest]
        scaled = scaled[largest]
    weights = np.exp(scaled)
    if sampling.top_p < 1:
        nucleus = _nucleus(scaled, weights, sampling.top_p)
        kept = nucleus if kept is None else kept[nucleus]
        weights = weights[nucleus]
    index = _pick(weights, chance)
    return index if kept is None else int(kept[index])


def _nucleus(scaled: Floats, weights: Floats, top_p: float) -> Int64s:
    """The fewest, largest weights that together reach `top_p` of the sum, in order of index; of equals the lower index.

    A whole vocabulary is not sorted: its weights fall into buckets by their logarithm (`scaled`, at most 0), and only
    in the bucket where the sum passes the target does the order matter.
    """
    bucket = np.minimum(scaled * -_BUCKETS_PER_E, _BUCKETS).astype(np.int64)
    reached = np.cumsum(np.bincount(bucket, weights))
    target = top_p * reached[-1]
    edge = int(np.searchsorted(reached, target))
    inside = np.flatnonzero(bucket == edge)
    inside = inside[np.argsort(-weights[inside], kind="stable")]
    before = reached[edge - 1] if edge else 0.0
    count = int(np.searchsorted(np.cumsum(weights[inside], dtype=np.float64), target - before)) + 1
    kept = bucket < edge
    kept[inside[:count]] = True
    return np.flatnonzero(kept)


def _pick(weights: Floats, chance: float) -> int:
    """The index at which the cumulative sum passes `chance` of the whole; never one of weight 0."""
    if len(weights) <= 4 * _CHUNK:
        return _pick_at(np.cumsum(weights, dtype=np.float64), chance * float(weights.sum(dtype=np.float64)))
    reached = np.cumsum(np.add.reduceat(weights, np.arange(0, len(weights), _CHUNK)), dtype=np.float64)
    target = chance * float(reached[-1])
    chunk = _pick_at(reached, target)
    begin = chunk * _CHUNK
    inside = np.cumsum(weights[begin : begin + _CHUNK], dtype=np.float64)
    return begin + _pick_at(inside, target - float(reached[chunk - 1] if chunk else 0))


def _pick_at(reached: np.typing.NDArray[np.float64], target: float) -> int:
    """First index beyond `target`; the last that adds anything, should rounding leave `target` at the end."""
    last = int(np.searchsorted(reached, reached[-1]))
    return min(int(np.searchsorted(reached, target, side="right")), last)
