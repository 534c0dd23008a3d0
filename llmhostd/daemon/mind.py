"""What does the daemon need of whoever decides for the box?

`HostMind` is it. A benchmark may start the daemon with another (`simulator/baselines.py`), to compare on equal terms.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from llmhostd.domain.actions import HostAction
from llmhostd.domain.events import HostEvent
from llmhostd.domain.hardware import NodeSpec
from llmhostd.host.snapshots import MindSnapshot


class Mind(Protocol):
    """Decides for one box."""

    def step(self, event: HostEvent, now: float) -> list[HostAction]:
        """Hear one event; say what is to be done, in this order. Raises OperatorError for an unusable profile."""
        ...

    def snapshot(self, now: float) -> MindSnapshot:
        """Say what the box is doing this second; changes nothing."""
        ...


MakeMind = Callable[[Sequence[NodeSpec]], Mind]
