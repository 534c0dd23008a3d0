"""What is loaded where, as the next run of the daemon must know it?

Looked at now and again, beside the work, and written when it changed. What a run was about to load again, and what was
on a node whose worker is down this moment, counts as loaded.
"""

import asyncio
import time
from collections.abc import Iterator
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
_AT = tuple[ModelName, NodeId]


class Placements:
    """Follows the mind for the disk."""

    def __init__(self, mind: Mind, records: Records, note: RunNote, save_s: float) -> None:
        self._mind = mind
        self._records = records
        self._note = note
        self._save_s = save_s
        self._saved: dict[_AT, Placement] | None = None
        """None: whatever the last run left."""

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
        now = {(one.model, one.node_id): one for one in self._loaded(seen)}
        if self._saved is None or _worth_writing(self._saved, now):
            self._saved = now
            self._records.soon(partial(self._records.placements.replace, list(now.values())))

    def _loaded(self, seen: MindSnapshot) -> Iterator[Placement]:
        """What is loaded last: of two instances of a model on one node, the nearer to its first token counts."""
        unix_s, known = time.time(), {one.name for one in seen.models}
        down = {node.id for node in seen.nodes if not node.up}
        yield from (one for one in (self._saved or {}).values() if one.node_id in down and one.model in known)
        for awaited in seen.awaited:
            if awaited.model in known:
                yield Placement(
                    model=awaited.model, node_id=awaited.node_id, resident=awaited.resident,
                    used_at=unix_s - awaited.unused_s,
                )  # fmt: skip
        for one in sorted(seen.instances, key=lambda each: each.state is ModelState.RESIDENT):
            if one.state in (ModelState.WARM, ModelState.RESIDENT) and one.model in known:
                yield Placement(
                    model=one.model, node_id=one.node_id, resident=one.state is ModelState.RESIDENT,
                    used_at=unix_s - one.idle_s,
                )  # fmt: skip


def _worth_writing(before: dict[_AT, Placement], now: dict[_AT, Placement]) -> bool:
    if _in_order(before) != _in_order(now):
        return True
    return any(abs(one.used_at - before[at].used_at) > _MOVED_S for at, one in now.items())


def _in_order(placements: dict[_AT, Placement]) -> list[tuple[_AT, bool]]:
    ordered = sorted(placements.items(), key=lambda each: each[1].used_at)
    return [(at, one.resident) for at, one in ordered]
