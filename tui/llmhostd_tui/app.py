"""How do messages and keys become what a person sees? The only place that knows client, picture and screens."""

from pathlib import Path
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from llmhostd_tui import look
from llmhostd_tui.client import DaemonClient, Lost
from llmhostd_tui.messages import DaemonLost, DecisionMade, SnapshotArrived
from llmhostd_tui.picture import Picture
from llmhostd_tui.screens.details import Details
from llmhostd_tui.screens.help import Help
from llmhostd_tui.screens.memory import Memory
from llmhostd_tui.screens.overview import Overview
from llmhostd_tui.widgets.table import Table

REDRAW_EVERY_S = 0.2
"""However fast decisions come, a person reads no faster."""


class Top(App[None]):
    """`llmhostd top`."""

    TITLE = "llmhostd"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("p", "pause", "pause"),
        Binding("m", "memory", "memory"),
        Binding("question_mark", "help", "help", key_display="?"),
    ]

    def __init__(self, client: DaemonClient) -> None:
        super().__init__()
        self._client = client
        self._picture = Picture(client.address)
        self._frozen: Picture | None = None
        self._unseen = 0
        self._dirty = True
        self.overview = Overview()

    def on_mount(self) -> None:
        """Begin to ask."""
        self.register_theme(look.THEME)
        self.theme = look.THEME.name
        self.push_screen(self.overview)
        self.run_worker(self._watch_snapshots(), name="snapshots")
        self.run_worker(self._watch_decisions(), name="decisions")
        self.set_interval(REDRAW_EVERY_S, self._redraw)

    async def _watch_snapshots(self) -> None:
        async for heard in self._client.snapshots():
            self.post_message(DaemonLost(heard) if isinstance(heard, Lost) else SnapshotArrived(heard))

    async def _watch_decisions(self) -> None:
        async for decision in self._client.decisions():
            self.post_message(DecisionMade(decision))

    def on_snapshot_arrived(self, message: SnapshotArrived) -> None:
        """Know more."""
        self._picture.hear_snapshot(message.snapshot)
        self._dirty = True

    def on_daemon_lost(self, message: DaemonLost) -> None:
        """Know less."""
        self._picture.hear_lost(message.lost)
        self._dirty = True

    def on_decision_made(self, message: DecisionMade) -> None:
        """Know why."""
        self._picture.hear_decision(message.decision)
        self._unseen += self._frozen is not None
        self._dirty = True

    @property
    def shown(self) -> Picture:
        """What is on the screen: as it was, while paused."""
        return self._frozen or self._picture

    def _redraw(self) -> None:
        if not self._dirty or not self.overview.drawable:
            return
        self._dirty = False
        self.overview.show(self.shown, paused=self._frozen is not None, unseen=self._unseen)
        if isinstance(self.screen, Memory) and self.screen.drawable:
            self.screen.show(self.shown, paused=self._frozen is not None, unseen=self._unseen)
        if isinstance(self.screen, Details) and self.screen.drawable:
            self.screen.show(self.shown)

    def on_resize(self) -> None:
        """Header and banner choose what fits."""
        self._dirty = True

    def action_pause(self) -> None:
        """Freeze the screen, or go on; what happens meanwhile is kept."""
        self._frozen = None if self._frozen else self._picture.frozen()
        self._unseen = 0
        self._dirty = True
        self._redraw()

    def action_help(self) -> None:
        """Say what everything means."""
        if not isinstance(self.screen, Help):
            self.push_screen(Help())

    def action_memory(self) -> None:
        """Show who holds which bytes."""
        self.push_screen(Memory())
        self._dirty = True

    def on_table_opened(self, message: Table.Opened) -> None:
        """Say more about one thing."""
        self.push_screen(Details(message.thing, self.shown))


def run(url: str | None, socket: Path | None, key: str | None = None) -> None:
    """Watch the daemon at `url`, or over the unix socket, until a person quits."""
    Top(DaemonClient(url, socket, key)).run()
