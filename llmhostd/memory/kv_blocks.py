"""Which KV block holds which tokens, and whose are they?

The block tables of one instance. A block holds the keys and values of `block_tokens` consecutive context tokens of one
request, or of several that share a prefix. Every block is in exactly one of three states:

- owned: in the table of one request or more (counted by `references`);
- cached: nobody's, but full, and still holding tokens that a later request may begin with; the least recently used goes
  first;
- free: holding nothing.

Prefixes are found by chained digests: a full block is known by its own tokens and the digest of the block before it, so
that equal digests mean equal contexts from the first token on (the automatic prefix caching of vLLM). Whoever computes
them is part of it: with different adapters, equal tokens have different keys and values.
"""

from array import array
from collections.abc import Iterable
from hashlib import blake2b
from heapq import heapify, heappop, heappush

from llmhostd.domain.errors import EngineError
from llmhostd.domain.ids import RequestId


class KvExhaustedError(EngineError):
    """More blocks were needed than exist: the plan that asked for them was wrong."""


class _Table:
    """One request's blocks in order, and the digests of those that are full."""

    __slots__ = ("blocks", "digests", "root")

    def __init__(self, computed_by: str) -> None:
        self.root = blake2b(computed_by.encode(), digest_size=16).digest() if computed_by else b""
        """What the first block is chained to."""
        self.blocks = array("i")
        self.digests: list[bytes] = []

    @property
    def sealed(self) -> int:
        """Full blocks."""
        return len(self.digests)

    def next_digest(self, context: "array[int]", block_tokens: int) -> bytes:
        """What the block after the full ones is known by; 16 bytes, so that two prefixes never meet by chance."""
        begin = self.sealed * block_tokens
        parent = self.digests[-1] if self.digests else self.root
        return blake2b(parent + context[begin : begin + block_tokens].tobytes(), digest_size=16).digest()


class KvBlocks:
    """Block ids 0 <= id < capacity of one instance, and who holds them."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.capacity = 0
        self._tables: dict[RequestId, _Table] = {}
        self._free: list[int] = []
        """A heap: low ids first, so that memory which was touched is used again and shrinking moves little."""
        self._references: dict[int, int] = {}
        """Owned block -> tables it is in."""
        self._cached: dict[int, None] = {}
        """Cached blocks, least recently used first."""
        self._block_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}
        """Both ways between a digest and the one block, owned or cached, that is known by it."""

    @property
    def owned(self) -> int:
        """Blocks in some request's table."""
        return len(self._references)

    @property
    def shared(self) -> int:
        """Blocks that tables name beyond once: a block in three tables counts two."""
        return sum(len(table.blocks) for table in self._tables.values()) - len(self._references)

    @property
    def spare(self) -> int:
        """Blocks that can be had without a larger cache: free ones, and cached ones that would be given away."""
        return len(self._free) + len(self._cached)

    @property
    def cached(self) -> int:
        """Blocks that nobody owns and that would be given away when needed."""
        return len(self._cached)

    def open(self, request_id: RequestId, context: "array[int]", computed_by: str = "") -> int:
        """Begin a table with the longest cached prefix of `context`; returns how many tokens that is.

        `computed_by`: the adapter, if any; only what the same one computed is a prefix. The last context token is never
        taken from the cache: computing it is what yields the next token.
        """
        self._tables[request_id] = _Table(computed_by)
        return self.reuse(request_id, context)

    def reuse(self, request_id: RequestId, context: "array[int]") -> int:
        """Take what others have computed meanwhile, as `open` does; returns the tokens that are in sealed blocks then.

        Only for a table that ends with its sealed blocks: one that is at a block's end.
        """
        table = self._tables[request_id]
        if len(table.blocks) > table.sealed:
            return table.sealed * self.block_tokens
        while table.sealed < (len(context) - 1) // self.block_tokens:
            digest = table.next_digest(context, self.block_tokens)
            block = self._block_of.get(digest)
            if block is None:
                break
            self._cached.pop(block, None)
            self._references[block] = self._references.get(block, 0) + 1
            table.blocks.append(block)
            table.digests.append(digest)
        return table.sealed * self.block_tokens

    def table(self, request_id: RequestId) -> "array[int]":
        """Block ids in order of the tokens they hold. Not a copy."""
        return self._tables[request_id].blocks

    def extend(self, request_id: RequestId, tokens: int) -> None:
        """Make room for the first `tokens` context tokens. Raises KvExhaustedError, with nothing taken."""
        table = self._tables[request_id].blocks
        lacking = -(-tokens // self.block_tokens) - len(table)
        if lacking > self.spare:
            raise KvExhaustedError(
                f"{request_id} needs {lacking} more KV blocks, {self.spare} of {self.capacity} can be had"
            )
        for _ in range(lacking):
            block = self._take()
            self._references[block] = 1
            table.append(block)

    def seal(self, request_id: RequestId, context: "array[int]", computed_tokens: int) -> None:
        """Make the blocks that are full now, after `computed_tokens` of `context`, known to later requests.

        The earlier ones too: another request's block that a prefix was known by may have been given away since.
        """
        table = self._tables[request_id]
        while table.sealed < computed_tokens // self.block_tokens:
            table.digests.append(table.next_digest(context, self.block_tokens))
        for block, digest in zip(table.blocks, table.digests, strict=False):
            if digest not in self._block_of:
                self._block_of[digest] = block
                self._digest_of[block] = digest

    def close(self, request_id: RequestId) -> None:
        """End a table. Its sealed blocks stay cached, the deepest first to go: a prefix is worth more than its tail."""
        for block in reversed(self._tables.pop(request_id).blocks):
            self._references[block] -= 1
            if self._references[block]:
                continue
            del self._references[block]
            if block in self._digest_of:
                self._cached[block] = None
            else:
                heappush(self._free, block)

    def moves_for(self, capacity: int) -> tuple[tuple[int, int], ...]:
        """Return the copies (from, to) to make before the number of blocks may become `capacity`; changes nothing.

        Shrinking gives away cached blocks first. Raises KvExhaustedError when `capacity` is less than what requests
        own.
        """
        if capacity < self.owned:
            raise KvExhaustedError(f"cannot shrink to {capacity} KV blocks: requests own {self.owned}")
        if capacity >= self.capacity:
            return ()
        given_away = list(self._cached)[: self._surplus(capacity)]
        kept = (*self._references, *list(self._cached)[len(given_away) :])
        holes = sorted(block for block in (*self._free, *given_away) if block < capacity)
        return tuple(zip(sorted(block for block in kept if block >= capacity), holes, strict=False))

    def resize(self, capacity: int) -> None:
        """Change the number of blocks, once the copies of `moves_for(capacity)` are made. Raises as that does."""
        moves = dict(self.moves_for(capacity))
        for _ in range(self._surplus(capacity)):
            heappush(self._free, self._evict())
        self._free += range(self.capacity, capacity)
        taken = set(moves.values())
        self._free = [block for block in self._free if block < capacity and block not in taken]
        heapify(self._free)
        self.capacity = capacity
        if moves:
            self._rename(moves)

    def distrust(self, blocks: Iterable[int]) -> None:
        """Forget what these blocks hold if nobody owns them: copies that failed half way may have written there."""
        for block in blocks:
            if block in self._cached:
                del self._cached[block]
                del self._block_of[self._digest_of.pop(block)]
                heappush(self._free, block)

    def _surplus(self, capacity: int) -> int:
        """Cached blocks that do not fit into a capacity."""
        return max(0, self.owned + self.cached - capacity)

    def _rename(self, moves: dict[int, int]) -> None:
        for table in self._tables.values():
            table.blocks = array("i", (moves.get(block, block) for block in table.blocks))
        self._references = {moves.get(block, block): count for block, count in self._references.items()}
        self._cached = {moves.get(block, block): None for block in self._cached}
        self._digest_of = {moves.get(block, block): digest for block, digest in self._digest_of.items()}
        self._block_of = {digest: block for block, digest in self._digest_of.items()}

    def _take(self) -> int:
        return heappop(self._free) if self._free else self._evict()

    def _evict(self) -> int:
        """Forget the least recently used cached block."""
        block = next(iter(self._cached))
        del self._cached[block]
        del self._block_of[self._digest_of.pop(block)]
        return block

    def check(self) -> None:
        """Raise AssertionError unless what must always hold, holds; anyone may call it."""
        counts: dict[int, int] = {}
        for table in self._tables.values():
            for block in table.blocks:
                counts[block] = counts.get(block, 0) + 1
        states = sorted([*self._free, *self._cached, *counts])
        known = {block: digest for digest, block in self._block_of.items()}
        for holds, what in (
            (counts == self._references, "reference counts differ from the tables"),
            (states == list(range(self.capacity)), "owned + cached + free != capacity"),
            (known == self._digest_of, "digests and blocks disagree"),
            (all(block in known for block in self._cached), "a cached block is unknown"),
            (not any(block in known for block in self._free), "a free block is known"),
        ):
            if not holds:
                raise AssertionError(what)
