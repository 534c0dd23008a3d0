"""What did each node hold over the last minutes? No I/O, no widgets."""

from collections import deque
from dataclasses import dataclass, field

from llmhostd.domain.ids import NodeId
from llmhostd.domain.snapshot import NodeSnapshot

KEPT_S = 300.0


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes on one node: used of what is held, held of what is promised, promised of the budget (SLINFER §VII-C)."""

    used: int
    """Weights, and KV blocks that requests own."""
    held: int
    """What instances may hold at this moment."""
    promised: int
    """What they will hold once everything that was decided is done: more than is held before growth, less before
    something is given back."""
    budget: int

    @classmethod
    def of(cls, node: NodeSnapshot) -> "Moment":
        """Read a node's own figures; those of its host until its worker said anything."""
        held = node.held_bytes or node.weights_bytes + node.kv_bytes
        return cls(
            used=node.used_bytes or node.weights_bytes + node.kv_used_bytes,
            held=held,
            promised=node.promised_bytes or held,
            budget=node.budget_bytes or node.memory_bytes,
        )


@dataclass(slots=True)
class MemoryHistory:
    """Moments of every node, oldest first. Times are seconds on this process's monotonic clock."""

    moments: dict[NodeId, deque[tuple[float, Moment]]] = field(default_factory=dict)

    def hear(self, taken_s: float, nodes: tuple[NodeSnapshot, ...]) -> None:
        """Add what the nodes hold now, and forget what is old."""
        for node in nodes:
            kept = self.moments.setdefault(node.id, deque())
            kept.append((taken_s, Moment.of(node)))
            while taken_s - kept[0][0] > KEPT_S:
                kept.popleft()

    def copy(self) -> "MemoryHistory":
        """Return one that stays as it is."""
        return MemoryHistory({node: deque(kept) for node, kept in self.moments.items()})

    def columns(self, node: NodeId, count: int) -> list[Moment | None]:
        """Return `count` equal parts of the last minutes, newest last: the most that was held in each.

        Parts begin at multiples of their length, so that what is drawn moves on and does not flicker. Where nothing was
        heard it is as before; None before anything was.
        """
        kept = self.moments.get(node, ())
        if not kept or count < 1:
            return [None] * count
        part_s = KEPT_S / count
        last = int(kept[-1][0] // part_s)
        columns: list[Moment | None] = [None] * count
        for taken_s, moment in kept:
            at = int(taken_s // part_s) - last + count - 1
            if at >= 0:
                before = columns[at]
                columns[at] = moment if before is None or moment.held >= before.held else before
        for at in range(1, count):
            columns[at] = columns[at] or columns[at - 1]
        return columns
