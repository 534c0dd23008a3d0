"""What is the simplest correct caller of an engine?

Contexts with block tables, one iteration at a time, no prefix reuse, no scheduling: the slow, obvious twin of the
runner, for conformance checks, tests and measurements of engines alone.
"""

from collections.abc import Sequence

import numpy as np

from llmhostd.engines.interface import EngineInstance, Floats, Iteration


class Context:
    """One growing sequence of tokens. `done`: tokens whose KV exists; `blocks`: its block table.

    `adapter`: the slot of its adapter, -1: none.
    """

    def __init__(self, tokens: Sequence[int], adapter: int = -1) -> None:
        self.tokens = list(tokens)
        self.adapter = adapter
        self.done = 0
        self.blocks: list[int] = []


class PagedContexts:
    """Runs contexts on the instances of one model: a single one, or ranges that follow each other."""

    def __init__(self, ranges: Sequence[EngineInstance], kv_blocks: int) -> None:
        self._ranges = tuple(ranges)
        self._block_tokens = ranges[0].block_tokens
        self._free: list[int] = []
        self._live: list[Context] = []
        self._blocks = 0
        self.resize(kv_blocks)

    def resize(self, kv_blocks: int) -> None:
        """Grow or shrink, moving live blocks out of a tail that goes. They must fit."""
        used = {block for context in self._live for block in context.blocks}
        holes = [block for block in range(kv_blocks) if block not in used]
        moved = dict(zip(sorted(block for block in used if block >= kv_blocks), holes, strict=False))
        for one in self._ranges:
            one.resize_kv(kv_blocks, tuple(moved.items()))
        for context in self._live:
            context.blocks = [moved.get(block, block) for block in context.blocks]
        used = {block for context in self._live for block in context.blocks}
        self._free = [block for block in range(kv_blocks) if block not in used]
        self._blocks = kv_blocks

    def release(self, context: Context) -> None:
        """Free a context's blocks; it may start again."""
        self._live.remove(context)
        self._free += context.blocks
        context.blocks, context.done = [], 0

    def iteration(self, work: Sequence[tuple[Context, int]], sample: Sequence[int] | None = None) -> Iteration:
        """Make the iteration that computes `n` more tokens of each context. Sampled: their last tokens, or `sample`."""
        ids: list[int] = []
        positions: list[int] = []
        begins, block_begins, blocks = [0], [0], []
        for context, count in work:
            if context not in self._live:
                self._live.append(context)
            end = context.done + count
            while len(context.blocks) * self._block_tokens < end:
                context.blocks.append(self._free.pop())
            ids += context.tokens[context.done : end]
            positions += range(context.done, end)
            begins.append(len(ids))
            blocks += context.blocks
            block_begins.append(len(blocks))
        return Iteration(
            token_ids=np.array(ids, np.int64),
            positions=np.array(positions, np.int64),
            past_lens=np.array([context.done for context, _ in work], np.int32),
            subsequence_begins=np.array(begins, np.int32),
            block_indices=np.array(blocks, np.int32),
            block_indices_begins=np.array(block_begins, np.int32),
            sampled_indices=np.array([end - 1 for end in begins[1:]] if sample is None else sample, np.int64),
            adapters=np.array([context.adapter for context, _ in work], np.int32),
        )

    def step(self, work: Sequence[tuple[Context, int]], sample: Sequence[int] | None = None) -> Floats:
        """Run one iteration through all ranges; returns a copy of the last one's output."""
        iteration = self.iteration(work, sample)
        output = self._ranges[0].run(iteration)
        for one in self._ranges[1:]:
            iteration.hidden = output
            output = one.run(iteration)
        for context, count in work:
            context.done += count
        return output.copy()

    def greedy(
        self, tokens: Sequence[int], count: int, chunk: int | None = None, adapter: int = -1
    ) -> tuple[list[int], Floats]:
        """Continue a prompt greedily, its prefill in chunks. Returns the new tokens and the logits they came from."""
        context = Context(tokens, adapter)
        rows = [self._prefill(context, chunk or len(tokens))]
        for _ in range(count - 1):
            context.tokens.append(int(rows[-1].argmax()))
            rows.append(self.step([(context, 1)])[0])
        self.release(context)
        logits = np.stack(rows)
        return [int(row.argmax()) for row in logits], logits

    def _prefill(self, context: Context, chunk: int) -> Floats:
        while context.done + chunk < len(context.tokens):
            self.step([(context, chunk)], sample=())
        last: Floats = self.step([(context, len(context.tokens) - context.done)])[0]
        return last
