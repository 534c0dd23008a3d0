"""Which memory operation may run now, which waits for a release, which would wait in vain? (SLINFER §VII-C, fig. 19.)

Whoever decides has promised the bytes already (the optimistic budget). An operation may run once the node really has
them (pessimistic tracking): until then it waits here, and is looked at again at every completed release. Operations run
in the order in which they were issued, as far as they fit: a small one may pass a large one, because all of them fit
once the releases under way are over. One that would not fit even then waits for what never comes: it is cancelled, and
says why. So each operation runs or is cancelled, and the station cannot deadlock.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from llmhostd.domain.ids import InstanceId

Growth = Callable[[InstanceId], int]
"""Bytes that an operation takes up beyond what its instance holds now; it may change while the operation waits."""


class OperationKind(StrEnum):
    """What an instance does with more memory."""

    LOAD_WEIGHTS = "load its weights"
    GROW_KV = "grow its KV"
    WAKE = "wake"
    """Pack its weights again: it is warm, or was sent back to warm and is needed after all."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What waits for memory. An instance has one at a time: all that it was promised and may not take up yet."""

    instance_id: InstanceId
    kind: OperationKind
    because: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """An operation that will not run."""

    operation: Operation
    because: str


class ReservationStation:
    """The waiting operations of one node, first come first."""

    __slots__ = ("_waiting", "cancelled", "issued", "ran")

    def __init__(self) -> None:
        self._waiting: dict[InstanceId, Operation] = {}
        self.issued = self.ran = self.cancelled = 0
        """How many there were; issued == waiting + ran + cancelled."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Operation]:
        return iter(list(self._waiting.values()))

    def __contains__(self, instance_id: InstanceId) -> bool:
        return instance_id in self._waiting

    def issue(self, operation: Operation) -> None:
        """Let an operation wait; one of the same instance that waits already keeps its turn, and becomes this one."""
        self.issued += operation.instance_id not in self._waiting
        self._waiting[operation.instance_id] = operation

    def due(self, growth: Growth, free_bytes: int) -> Operation | None:
        """Take out the first operation that fits into what is free at this moment; ask again after it has taken that.

        What needs no bytes fits even where facts overdrew the node. Nobody who waits in vain may be in here
        (`in_vain`): it would take what those before it wait for.
        """
        for operation in self._waiting.values():
            if growth(operation.instance_id) <= max(free_bytes, 0):
                del self._waiting[operation.instance_id]
                self.ran += 1
                return operation
        return None

    def in_vain(self, growth: Growth, free_bytes: int, coming_bytes: int) -> list[Cancelled]:
        """Take out the operations that would not fit even if all releases under way (`coming_bytes`) were over.

        Whoever came first is counted first.
        """
        left_bytes, hopeless = free_bytes + coming_bytes, []
        for operation in self._waiting.values():
            grows_bytes = growth(operation.instance_id)
            if grows_bytes <= max(left_bytes, 0):
                left_bytes -= grows_bytes
                continue
            because = (
                f"{operation.instance_id} would need {_mib(grows_bytes)} to {operation.kind}, "
                f"and no more than {_mib(max(left_bytes, 0))} will come free"
            )
            hopeless.append(Cancelled(operation, because))
        for each in hopeless:
            self.cancel(each.operation.instance_id)
        return hopeless

    def cancel(self, instance_id: InstanceId) -> Operation | None:
        """Take out an operation that nobody needs any more; None: there was none."""
        operation = self._waiting.pop(instance_id, None)
        self.cancelled += operation is not None
        return operation

    def violations(self) -> list[str]:
        """What does not add up, a sentence each; empty when all is well."""
        ends = len(self._waiting) + self.ran + self.cancelled
        return (
            [] if self.issued == ends else [f"{self.issued} operations were issued, {ends} wait, ran or were cancelled"]
        )


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.0f} MiB"
