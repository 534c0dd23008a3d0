"""How does an instance without weights answer an iteration?

Its KV cache is real, of one number per token: the sum of the context up to it (`llmhostd_profiled.tokens`). A token's
sum goes on from the one before it, read through the request's block table. Whoever mixes up tables, blocks or moves
gets other tokens.
"""

import time
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from llmhostd.compute.estimator import ProfiledEstimator
from llmhostd.domain.errors import EngineError
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.model import ModelShape
from llmhostd.domain.profile import Profile
from llmhostd.domain.reports import LoadStages
from llmhostd.engines.interface import Floats, Int64s, Iteration, ModuleRange
from llmhostd_profiled.tokens import Sums, next_tokens, terms

_CHOSEN = 30.0
"""Logit of the token that follows; every other token's is 0. Drawn at a temperature of 1, it comes all the same."""


class ProfiledInstance:
    """An `engines.interface.EngineInstance`."""

    def __init__(self, shape: ModelShape, modules: ModuleRange, profile: Profile, node: NodeSpec) -> None:
        self.shape = shape
        self.stages = LoadStages()
        self.block_tokens = node.block_tokens
        self.token_step, self.token_counts = profile.token_step, profile.token_counts
        layers = shape.architecture.layers
        self._part = (modules.end - modules.first) / layers
        self.kv_bytes_per_block = max(round(node.block_tokens * shape.kv_bytes_per_token * self._part), 1)
        self.kv_blocks = 0
        self._most_blocks = node.memory_bytes // self.kv_bytes_per_block
        self._modules = modules
        self._profile = profile
        self._estimator = ProfiledEstimator(profile)
        self._sums: Sums = np.zeros((0, node.block_tokens), np.uint64)
        self.settled = False

    def run(self, iteration: Iteration) -> Floats:
        """See `EngineInstance.run`. Returns when the profile says, or later if this machine is slower than that."""
        began_s = time.monotonic()
        token_ids = self._token_ids(iteration)
        sums = self._extend(iteration, terms(token_ids, iteration.positions))
        output = self._logits(sums[iteration.sampled_indices]) if self._modules.head else self._hidden(token_ids)
        due_s = began_s + self._part * (self._seconds(iteration) + (0.0 if self.settled else self._profile.first_run_s))
        self.settled = True
        time.sleep(max(0.0, due_s - time.monotonic()))
        return output

    def pack(self) -> None:
        """See `EngineInstance.pack`. Nothing is left to prepare."""

    def resize_kv(self, kv_blocks: int, moves: Sequence[tuple[int, int]] = ()) -> None:
        """See `EngineInstance.resize_kv`. All sources of `moves` are read before any target is written."""
        if not 0 <= kv_blocks <= self._most_blocks:
            raise EngineError(f"{kv_blocks} KV blocks do not fit: this node can hold 0 to {self._most_blocks}")
        if any(not 0 <= source < self.kv_blocks or not 0 <= target < kv_blocks for source, target in moves):
            raise EngineError(f"a KV move leaves the {self.kv_blocks} blocks there are or the {kv_blocks} to be")
        sums = np.zeros((kv_blocks, self.block_tokens), np.uint64)
        kept = min(kv_blocks, self.kv_blocks)
        sums[:kept] = self._sums[:kept]
        for source, target in moves:
            sums[target] = self._sums[source]
        self._sums, self.kv_blocks = sums, kv_blocks

    def held_bytes(self) -> int:
        """See `EngineInstance.held_bytes`: what the profile says that the model holds there."""
        held = self._profile.warm_bytes
        if self.settled:
            # Of a tiny model, the rough figure for a warm instance may be the larger one.
            held = max(held, self._profile.resident_bytes)
        return int(self._part * held)

    def unload(self) -> None:
        """See `EngineInstance.unload`."""
        self._sums = self._sums[:0]

    def _token_ids(self, it: Iteration) -> Int64s:
        if self._modules.embedding:
            return it.token_ids
        if it.hidden is None:
            raise EngineError("this range has no embedding: the iteration must carry hidden states")
        return it.hidden[:, 0].astype(np.int64)

    def _extend(self, it: Iteration, added: Sums) -> Sums:
        """Write the sums of all new tokens to their places in the cache; returns them, one per token."""
        sums = np.empty_like(added)
        for row, past in enumerate(it.past_lens.tolist()):
            begin, end = it.subsequence_begins[row], it.subsequence_begins[row + 1]
            table = it.block_indices[it.block_indices_begins[row] : it.block_indices_begins[row + 1]]
            before = self._sums[table[(past - 1) // self.block_tokens], (past - 1) % self.block_tokens] if past else 0
            sums[begin:end] = np.cumsum(added[begin:end]) + np.uint64(before)
            places = np.arange(past, past + end - begin)
            self._sums[table[places // self.block_tokens], places % self.block_tokens] = sums[begin:end]
        return sums

    def _logits(self, sums: Sums) -> Floats:
        architecture = self.shape.architecture
        logits: Floats = np.zeros((len(sums), architecture.vocab), np.float32)
        logits[np.arange(len(sums)), next_tokens(sums, architecture)] = _CHOSEN
        return logits

    def _hidden(self, token_ids: Int64s) -> Floats:
        """The next range needs nothing but the tokens: vocabularies are far below 2^24, so a float holds them."""
        hidden: Floats = np.zeros((len(token_ids), self.shape.architecture.hidden), np.float32)
        hidden[:, 0] = token_ids
        return hidden

    def _seconds(self, it: Iteration) -> float:
        """What the profile says of rows like these: one token after others is a decode, all else prefill."""
        lengths = np.diff(it.subsequence_begins).tolist()
        rows = list(zip(lengths, it.past_lens.tolist(), strict=True))
        contexts = [past + 1 for length, past in rows if length == 1 and past]
        prefill = tuple((length, past) for length, past in rows if length > 1 or not past)
        mean = round(fmean(contexts)) if contexts else 0
        return self._estimator.iteration_s(prefill=prefill, decode_batch=len(contexts), decode_context=mean)
