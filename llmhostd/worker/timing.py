"""How long does one iteration take here, of requests that do not exist?

Through the same batch and the same engine as real ones, in KV blocks that no request owns.
"""

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from llmhostd.engines.batch import Part, flatten
from llmhostd.engines.interface import InterruptibleInstance, Iteration
from llmhostd.engines.runner import Runner
from llmhostd.node.kv_pools import MEASURING_KV_BYTES

Rows = Sequence[tuple[int, int]]
"""(past, chunk) of every request of an iteration."""


def time_run(runner: Runner, rows: Rows, kv_bytes: int = MEASURING_KV_BYTES) -> float:
    """Seconds of an iteration with these rows, the last token of each sampled.

    `kv_bytes`: what it may fill; the requests share blocks beyond that. Raises EngineError as the engine does, or when
    requests own all KV there is.
    """
    with _prepared(runner, rows, kv_bytes) as iteration:
        began_s = time.perf_counter()
        runner.instance.run(iteration).argmax(axis=1)
        return time.perf_counter() - began_s


def time_unless(
    runner: Runner, rows: Rows, waits: Callable[[], bool], kv_bytes: int = MEASURING_KV_BYTES
) -> float | None:
    """As `time_run`; None if it was given up because somebody waits, as some engines can."""
    instance = runner.instance
    if not isinstance(instance, InterruptibleInstance):
        return time_run(runner, rows, kv_bytes)
    with _prepared(runner, rows, kv_bytes) as iteration:
        began_s = time.perf_counter()
        logits = instance.run_unless(iteration, waits)
        if logits is None:
            return None
        logits.argmax(axis=1)
        return time.perf_counter() - began_s


@contextmanager
def _prepared(runner: Runner, rows: Rows, kv_bytes: int) -> Iterator[Iteration]:
    """Lend it KV blocks, and have the engine where it will be.

    It prepares itself anew when the count of tokens changes, as it does with nearly every chunk that is served, and not
    from one decode to the next: so one token is computed ahead of each chunk.
    """
    instance = runner.instance
    needed = [-(-(past + chunk) // instance.block_tokens) for past, chunk in rows]
    most = max(kv_bytes // instance.kv_bytes_per_block, 1)
    with runner.borrow_blocks(min(sum(needed), most)) as blocks:
        # Pages that were never written are all the same page, which stays in the nearest cache.
        instance.resize_kv(instance.kv_blocks, [(blocks[0], block) for block in blocks])
        if any(chunk > 1 for _, chunk in rows):
            instance.run(flatten(_parts([(0, 1)], [1], blocks), instance.block_tokens))
        yield flatten(_parts(rows, needed, blocks), instance.block_tokens)


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
