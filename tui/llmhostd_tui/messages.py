"""What does the client tell the app?"""

from textual.message import Message

from llmhostd.domain.snapshot import Decision
from llmhostd_tui.client import Lost, Snapshot


class SnapshotArrived(Message):
    """The daemon answered."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot


class DaemonLost(Message):
    """The daemon did not answer."""

    def __init__(self, lost: Lost) -> None:
        super().__init__()
        self.lost = lost


class DecisionMade(Message):
    """A mind decided something."""

    def __init__(self, decision: Decision) -> None:
        super().__init__()
        self.decision = decision
