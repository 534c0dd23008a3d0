"""Which minds does a simulated box have?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from llmhostd.domain.actions import HostAction
from llmhostd.domain.events import HostEvent
from llmhostd.domain.hardware import NodeSpec
from llmhostd.host.core import HostMind
from llmhostd.node.core import NodeMind


class DecidesForBox(Protocol):
    """What the host mind and the baselines have in common."""

    def step(self, event: HostEvent, now: float) -> list[HostAction]:
        """Hear one event; say what is to be done."""
        ...


@dataclass(frozen=True, slots=True)
class Minds:
    """How the minds of a box are made."""

    host: Callable[[Sequence[NodeSpec]], DecidesForBox] = HostMind
    node: Callable[[NodeSpec], NodeMind] = NodeMind
