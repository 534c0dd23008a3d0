"""How long does one iteration take here, of requests that do not exist?

Through the same batch and the same engine as real ones, in KV blocks that no request owns.
"""

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from llmhostd.engines.batch import Part, flatten
from llmhostd.engines.interface import InterruptibleInstance
from llmhostd.engines.runner import Runner
from llmhostd.node.kv_pools import MEASURING_KV_BYTES

Rows = Sequence[tuple[int, int]]
"""(past, chunk) of every request of an iteration."""


class Stopwatch:
    """Times iterations on one runner, one by one; between them the runner may serve."""

    def __init__(self, runner: Runner, kv_bytes: int = MEASURING_KV_BYTES) -> None:
        """`kv_bytes`: what an iteration may fill; its requests share blocks beyond that."""
        self._runner, self._kv_bytes = runner, kv_bytes
        self._written: set[int] = set()
        """Blocks that were written since the pool was resized."""
        self._pool_blocks = 0

    def seconds(self, rows: Rows) -> float:
        """Time an iteration with these rows, the last token of each sampled.

        Raises EngineError as the engine does, or when requests own all KV there is.
        """
        with self._prepared(rows) as parts:
            began_s = time.perf_counter()
            instance = self._runner.instance
            instance.run(flatten(parts, instance.block_tokens)).argmax(axis=1)
            return time.perf_counter() - began_s

    def seconds_unless(self, rows: Rows, waits: Callable[[], bool]) -> float | None:
        """As `seconds`; None if it was given up because somebody waits, as some engines can."""
        instance = self._runner.instance
        if not isinstance(instance, InterruptibleInstance):
            return self.seconds(rows)
        with self._prepared(rows) as parts:
            began_s = time.perf_counter()
            logits = instance.run_unless(flatten(parts, instance.block_tokens), waits)
            if logits is None:
                return None
            logits.argmax(axis=1)
            return time.perf_counter() - began_s

    @contextmanager
    def _prepared(self, rows: Rows) -> Iterator[list[Part]]:
        """Lend it KV blocks, and have the engine where it will be.

        It prepares itself anew when the count of tokens changes, as it does with nearly every chunk that is served, and
        not from one decode to the next: so one token is computed ahead of each chunk.
        """
        instance = self._runner.instance
        needed = [-(-(past + chunk) // instance.block_tokens) for past, chunk in rows]
        most = max(self._kv_bytes // instance.kv_bytes_per_block, 1)
        with self._runner.borrow_blocks(min(sum(needed), most)) as blocks:
            self._write(blocks)
            if any(chunk > 1 for _, chunk in rows):
                instance.run(flatten(_parts([(0, 1)], [1], blocks), instance.block_tokens))
            yield _parts(rows, needed, blocks)

    def _write(self, blocks: "array[int]") -> None:
        """Write what never was: such pages are all the same page, which stays in the nearest cache.

        And nothing twice: what was just written lies in a cache, too, as no KV does that is served.
        """
        instance = self._runner.instance
        if instance.kv_blocks != self._pool_blocks:
            self._written.clear()
            self._pool_blocks = instance.kv_blocks
        never = [block for block in blocks if block not in self._written]
        if never:
            instance.resize_kv(instance.kv_blocks, [(blocks[0], block) for block in never])
            self._written.update(never)


def _parts(rows: Rows, needed: Sequence[int], blocks: "array[int]") -> list[Part]:
    """Give every row its own blocks as far as there are any, then begin again with the first."""
    context = array("q", bytes(8 * max(past + chunk for past, chunk in rows)))
    repeated = blocks * (2 + max(needed) // len(blocks))
    parts: list[Part] = []
    begin = 0
    for (past, chunk), count in zip(rows, needed, strict=True):
        parts.append((context, repeated[begin : begin + count], past, chunk, True))
        begin = (begin + count) % len(blocks)
    return parts
