"""How did the last run of the daemon end, what did that cut off, and what of it goes on?"""

import logging
import time
from collections.abc import Sequence

from llmhostd.daemon.decisions import DecisionFeed
from llmhostd.daemon.loop import HostLoop
from llmhostd.domain.events import PlacementKnown
from llmhostd.domain.ids import ModelName
from llmhostd.state.last_run import LastRun
from llmhostd.state.placements import Placement

log = logging.getLogger(__name__)

MOST_SHORT_RUNS = 3
"""After so many runs in a row that ended by themselves at once, nothing is loaded before anybody asks for it."""
_MOST_NAMES = 5


class Return:
    """What an earlier run left, for this one."""

    def __init__(self, last: LastRun | None, *, load_again: bool) -> None:
        self.ended = end_of(last)
        """How the last run ended, if not in good order; for people."""
        self.goes_on = ""
        """What of it goes on in this one; for people."""
        self._last = last
        self._load_again = load_again

    def load_again(self, placements: Sequence[Placement], loop: HostLoop) -> None:
        """Tell the mind what was loaded, unless that may be what ends the daemon."""
        if not self._load_again or self._gave_up:
            return
        unix_s = time.time()
        for one in placements:
            unused_s = max(0.0, unix_s - one.used_at)
            loop.hear(PlacementKnown(model=one.model, node_id=one.node_id, resident=one.resident, unused_s=unused_s))

    def say(self, loading: Sequence[ModelName], cut_off: int, feed: DecisionFeed) -> None:
        """Say it in the log and to whoever follows decisions.

        `loading`: what is loaded again; `cut_off`: best-effort calls that go on.
        """
        self.goes_on = "; ".join(self._what_goes_on(loading, cut_off))
        said = "; ".join(filter(None, (self.ended, self.goes_on)))
        if said:
            log.log(logging.WARNING if self.ended else logging.INFO, "%s", said)
            feed.note("LastRun", "", said)

    @property
    def _gave_up(self) -> bool:
        return self._last is not None and self._last.short and self._last.short_runs + 1 >= MOST_SHORT_RUNS

    def _what_goes_on(self, loading: Sequence[ModelName], cut_off: int) -> list[str]:
        said = []
        if cut_off:
            said.append(f"{_count(cut_off, 'best-effort call goes', 'best-effort calls go')} on")
        if loading:
            more = f" and {len(loading) - _MOST_NAMES} more" if len(loading) > _MOST_NAMES else ""
            listed = ", ".join(loading[:_MOST_NAMES])
            said.append(f"{_count(len(loading), 'model is', 'models are')} loaded again: {listed}{more}")
        elif self._gave_up and self._last:
            said.append(
                f"nothing is loaded again before it is asked for: {self._last.short_runs + 1} runs in a row ended at "
                "once"
            )
        return said


def end_of(last: LastRun | None) -> str:
    """Say how a run ended, and whom that cut off; empty for one that ended in good order."""
    if last is None:
        return ""
    people = _count(last.people, "stream of people", "streams of people")
    if last.stopped:
        return f"{people} outlived the drain of the last run and ended with it" if last.people else ""
    ago_s = max(0.0, time.time() - last.seen_at)
    how = "the machine went down under the last run" if last.machine_went_down else "the last run was not told to end"
    ended = f"{people} ended with it" if last.people else "nobody waited for a token then"
    return f"{how}, {_spell(ago_s)} ago; {ended}"


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _spell(seconds: float) -> str:
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
