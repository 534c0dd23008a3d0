"""What is loaded where, as the next run of the daemon must know it?

Looked at now and again, beside the work, and written when it changed. What a run was about to load again, and what was
on a node whose worker is down this moment, counts as loaded.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from functools import partial

from llmhostd.daemon.mind import Mind
from llmhostd.daemon.records import Records
from llmhostd.domain.ids import ModelName, NodeId
from llmhostd.domain.model import ModelState
from llmhostd.host.snapshots import MindSnapshot
from llmhostd.state.last_run import RunNote
from llmhostd.state.placements import Placement

_MOVED_S = 30.0
"""Times of use are written when they are so far from those on the disk; their order whenever it changes."""
_LOADED = (ModelState.LOADING, ModelState.WARM, ModelState.RESIDENT)
_AT = tuple[ModelName, NodeId]


class Placements:
    """Follows the mind for the disk."""

    def __init__(self, mind: Mind, records: Records, note: RunNote, save_s: float) -> None:
        self._mind = mind
        self._records = records
        self._note = note
        self._save_s = save_s
        self._saved: dict[_AT, Placement] = {}

    def begin(self, placements: Sequence[Placement]) -> None:
        """Know what the last run left on the disk."""
        self._saved = {(one.model, one.node_id): one for one in placements}

    async def save_often(self) -> None:
        """Write what changed, for ever."""
        while True:
            await asyncio.sleep(self._save_s)
            self.save()
            self._note.alive()

    def awaited(self) -> list[ModelName]:
        """Return the models that are still to be loaded again, last used first."""
        return list(dict.fromkeys(one.model for one in self._mind.snapshot(time.monotonic()).awaited))

    def save(self) -> None:
        """Have written soon what is loaded now, if that is news."""
        seen = self._mind.snapshot(time.monotonic())
        known = {one.name for one in seen.models}
        now = {(one.model, one.node_id): one for one in self._loaded(seen) if one.model in known}
        if _worth_writing(self._saved, now):
            self._saved = now
            self._records.soon("placements", partial(self._records.placements.replace, list(now.values())))

    def _loaded(self, seen: MindSnapshot) -> Iterator[Placement]:
        """What is loaded, or about to be. Of what is said twice, the later counts."""
        unix_s = time.time()
        down = {node.id for node in seen.nodes if not node.up}
        yield from (one for one in self._saved.values() if one.node_id in down)
        for one in seen.awaited:
            yield _placement(one.model, one.node_id, unix_s - one.unused_s, resident=one.resident)
        # Of two instances of a model on one node the nearer to its first token.
        for each in sorted(seen.instances, key=lambda each: each.state is ModelState.RESIDENT):
            resident = each.state is ModelState.RESIDENT
            before = self._saved.get((each.model, each.node_id))
            if each.state is ModelState.LOADING and before:
                resident = before.resident  # it is on its way back to that, or was a moment ago
            if each.state in _LOADED:
                yield _placement(each.model, each.node_id, unix_s - each.idle_s, resident=resident)


def _placement(model: ModelName, node_id: NodeId, used_at: float, *, resident: bool) -> Placement:
    return Placement(model=model, node_id=node_id, resident=resident, used_at=used_at)


def _worth_writing(before: dict[_AT, Placement], now: dict[_AT, Placement]) -> bool:
    if _in_order(before) != _in_order(now):
        return True
    return any(abs(one.used_at - before[at].used_at) > _MOVED_S for at, one in now.items())


def _in_order(placements: dict[_AT, Placement]) -> list[tuple[_AT, bool]]:
    ordered = sorted(placements.items(), key=lambda each: each[1].used_at)
    return [(at, one.resident) for at, one in ordered]
