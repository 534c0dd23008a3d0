"""Block tables against a slow twin that remembers what every block holds, token by token."""

from array import array

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from llmhostd.domain.ids import RequestId
from llmhostd.memory.kv_blocks import KvBlocks, KvExhaustedError

BLOCK = 4


def tokens(*values: int) -> "array[int]":
    return array("q", values)


def compute(blocks: KvBlocks, name: str, context: "array[int]") -> int:
    cached = blocks.open(RequestId(name), context)
    blocks.extend(RequestId(name), len(context))
    blocks.seal(RequestId(name), context, len(context))
    return cached


class BlocksAndTwin(RuleBasedStateMachine):
    """The twin knows prefixes as whole tuples of who computes and the tokens, has a plain list of what may be evicted,
    and remembers in `memory` the whole context up to the end of every block, as an engine would have written it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = KvBlocks(BLOCK)
        self.memory: dict[int, tuple[str | int, ...]] = {}
        self.prefixes: dict[tuple[str | int, ...], int] = {}
        self.evictable: list[int] = []
        self.contexts: dict[RequestId, list[int]] = {}
        self.computed_by: dict[RequestId, str] = {}
        self.computed: dict[RequestId, int] = {}
        self.names = 0

    def owners(self, block: int) -> int:
        return sum(block in self.blocks.table(request_id) for request_id in self.contexts)

    def evict(self, count: int) -> None:
        for _ in range(count):
            block = self.evictable.pop(0)
            self.prefixes = {prefix: held for prefix, held in self.prefixes.items() if held != block}

    @rule(context=st.lists(st.integers(0, 1), min_size=1, max_size=5 * BLOCK), by=st.sampled_from(("", "adapter")))
    def open(self, context: list[int], by: str) -> None:
        request_id = RequestId(f"r{self.names}")
        self.names += 1
        full = 0
        while (full + 1) * BLOCK < len(context) and (by, *context[: (full + 1) * BLOCK]) in self.prefixes:
            full += 1
        cached = self.blocks.open(request_id, array("q", context), by)
        assert cached == full * BLOCK
        self.computed_by[request_id] = by
        self.contexts[request_id] = context
        self.computed[request_id] = cached
        self.evictable = [block for block in self.evictable if not self.owners(block)]

    @precondition(lambda self: self.contexts)
    @rule(data=st.data(), more=st.integers(1, 2 * BLOCK))
    def compute(self, data: st.DataObject, more: int) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.contexts)))
        context, by = self.contexts[request_id], self.computed_by[request_id]
        upto = min(len(context), self.computed[request_id] + more)
        before = list(self.blocks.table(request_id))
        lacking = -(-upto // BLOCK) - len(before)
        free = self.blocks.capacity - self.blocks.owned - len(self.evictable)
        if lacking > free + len(self.evictable):
            with pytest.raises(KvExhaustedError, match="more KV blocks"):
                self.blocks.extend(request_id, upto)
            assert list(self.blocks.table(request_id)) == before
            return
        self.evict(max(0, lacking - free))
        self.blocks.extend(request_id, upto)
        table = self.blocks.table(request_id)
        for end in range(self.computed[request_id] + 1, upto + 1):
            self.memory[table[(end - 1) // BLOCK]] = (by, *context[:end])
        self.blocks.seal(request_id, array("q", context), upto)
        self.computed[request_id] = upto
        for end in range(BLOCK, upto + 1, BLOCK):
            self.prefixes.setdefault((by, *context[:end]), table[end // BLOCK - 1])

    @precondition(lambda self: self.contexts)
    @rule(data=st.data())
    def reuse(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.contexts)))
        context, by = self.contexts[request_id], self.computed_by[request_id]
        full = self.computed[request_id] // BLOCK
        if len(self.blocks.table(request_id)) == full:
            while (full + 1) * BLOCK < len(context) and (by, *context[: (full + 1) * BLOCK]) in self.prefixes:
                full += 1
            self.computed[request_id] = full * BLOCK
        assert self.blocks.reuse(request_id, array("q", context)) == full * BLOCK
        self.evictable = [block for block in self.evictable if not self.owners(block)]

    @precondition(lambda self: self.contexts)
    @rule(data=st.data(), token=st.integers(0, 1))
    def append(self, data: st.DataObject, token: int) -> None:
        self.contexts[data.draw(st.sampled_from(sorted(self.contexts)))].append(token)

    @precondition(lambda self: self.contexts)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.contexts)))
        table = list(self.blocks.table(request_id))
        self.blocks.close(request_id)
        del self.contexts[request_id], self.computed[request_id]
        known = self.prefixes.values()
        self.evictable += [block for block in reversed(table) if block in known and not self.owners(block)]

    @rule(capacity=st.integers(0, 16))
    def resize(self, capacity: int) -> None:
        if capacity < self.blocks.owned:
            old = self.blocks.capacity
            with pytest.raises(KvExhaustedError, match="cannot shrink"):
                self.blocks.resize(capacity)
            with pytest.raises(KvExhaustedError, match="cannot shrink"):
                self.blocks.moves_for(capacity)
            assert self.blocks.capacity == old
            return
        self.evict(max(0, self.blocks.owned + len(self.evictable) - capacity))
        moves = self.blocks.moves_for(capacity)
        self.blocks.check()
        assert moves == self.blocks.moves_for(capacity)
        self.blocks.resize(capacity)
        assert all(source >= capacity > target for source, target in moves)
        renamed = dict(moves)
        self.evictable = [renamed.get(block, block) for block in self.evictable]
        self.prefixes = {prefix: renamed.get(block, block) for prefix, block in self.prefixes.items()}
        for source, target in moves:
            self.memory[target] = self.memory[source]

    @rule(capacity=st.integers(0, 16))
    def fail_to_shrink(self, capacity: int) -> None:
        if not self.blocks.owned <= capacity < self.blocks.capacity:
            return
        targets = {target for _, target in self.blocks.moves_for(capacity)}
        self.blocks.distrust(targets)
        self.evictable = [block for block in self.evictable if block not in targets]
        self.prefixes = {
            prefix: held for prefix, held in self.prefixes.items() if held not in targets or self.owners(held)
        }

    @invariant()
    def tables_hold_their_contexts(self) -> None:
        self.blocks.check()
        assert self.blocks.cached == len(self.evictable)
        named = [block for request_id in self.contexts for block in self.blocks.table(request_id)]
        assert self.blocks.shared == len(named) - len(set(named))
        for request_id, context in self.contexts.items():
            table, by = self.blocks.table(request_id), self.computed_by[request_id]
            for index in range(-(-self.computed[request_id] // BLOCK)):
                end = min((index + 1) * BLOCK, self.computed[request_id])
                assert self.memory[table[index]] == (by, *context[:end])


BlocksAndTwin.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_blocks_and_twin = BlocksAndTwin.TestCase


def test_a_prefix_is_found_again_but_never_the_last_token() -> None:
    blocks = KvBlocks(BLOCK)
    blocks.resize(8)
    assert compute(blocks, "a", tokens(*range(8))) == 0
    assert blocks.open(RequestId("same"), tokens(*range(8))) == 4
    assert blocks.open(RequestId("longer"), tokens(*range(9))) == 8
    assert blocks.open(RequestId("other"), tokens(9, *range(1, 9))) == 0
    assert blocks.table(RequestId("longer"))[:2] == blocks.table(RequestId("a"))[:2]


def test_what_an_adapter_computed_is_no_prefix_for_others() -> None:
    blocks = KvBlocks(BLOCK)
    blocks.resize(16)
    compute(blocks, "base", tokens(*range(8)))
    for by in ("one", "two"):
        assert blocks.open(RequestId(by), tokens(*range(8)), by) == 0
        blocks.extend(RequestId(by), 8)
        blocks.seal(RequestId(by), tokens(*range(8)), 8)
    for by in ("one", "two", ""):
        assert blocks.open(RequestId(f"{by} again"), tokens(*range(9)), by) == 8
        assert blocks.table(RequestId(f"{by} again")) == blocks.table(RequestId(by or "base"))
    assert blocks.owned == 6


def test_the_least_recently_used_tail_goes_first() -> None:
    blocks = KvBlocks(BLOCK)
    blocks.resize(4)
    compute(blocks, "old", tokens(*range(8)))
    compute(blocks, "new", tokens(*range(10, 18)))
    blocks.close(RequestId("old"))
    blocks.close(RequestId("new"))
    assert (blocks.owned, blocks.cached) == (0, 4)
    blocks.open(RequestId("x"), tokens(90))
    blocks.extend(RequestId("x"), 1)
    blocks.close(RequestId("x"))
    assert blocks.open(RequestId("old again"), tokens(*range(9))) == 4
    assert blocks.open(RequestId("new again"), tokens(*range(10, 19))) == 8


def test_shrinking_moves_live_blocks_down_and_forgets_the_cache() -> None:
    blocks = KvBlocks(BLOCK)
    blocks.resize(6)
    compute(blocks, "first", tokens(*range(8)))
    compute(blocks, "second", tokens(*range(20, 28)))
    blocks.close(RequestId("first"))
    assert blocks.moves_for(2) == ((2, 0), (3, 1))
    blocks.resize(2)
    assert list(blocks.table(RequestId("second"))) == [0, 1]
    assert blocks.cached == 0
    blocks.check()
