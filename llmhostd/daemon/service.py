"""How does the daemon look to the API?"""

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from llmhostd import __version__
from llmhostd.api.service import Ask, ModelRegistration, RefusedError
from llmhostd.daemon.answer import Answer
from llmhostd.daemon.decisions import DecisionFeed, Follower
from llmhostd.daemon.loop import HostLoop
from llmhostd.daemon.models import Models
from llmhostd.daemon.precisions import check_precisions
from llmhostd.daemon.records import Records
from llmhostd.daemon.registration import examine
from llmhostd.daemon.submission import Submission
from llmhostd.daemon.tally import Tally
from llmhostd.daemon.texts import Texts
from llmhostd.domain.actions import Refusal
from llmhostd.domain.events import ModelAdded, ModelReleased, ModelRemoved, UnloadAsked, WarmUpAsked
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import ModelName
from llmhostd.domain.profile import Profile
from llmhostd.domain.snapshot import (
    HostSnapshot,
    InstanceSnapshot,
    ModelSnapshot,
    NodeSnapshot,
    RequestSnapshot,
)
from llmhostd.host.core import HostMind
from llmhostd.host.snapshots import snapshot

log = logging.getLogger(__name__)


class Daemon:
    """Implements `api.service.Service` with the parts that `compose` made."""

    def __init__(
        self,
        *,
        nodes: Sequence[NodeSpec],
        mind: HostMind,
        loop: HostLoop,
        models: Models,
        records: Records,
        texts: Texts,
        feed: DecisionFeed,
        tally: Tally,
        submission: Submission,
    ) -> None:
        self.draining = False
        self._nodes = nodes
        self._mind = mind
        self._loop = loop
        self._models = models
        self._records = records
        self._texts = texts
        self._feed = feed
        self._tally = tally
        self._submission = submission
        self._started_s = time.monotonic()
        self._changing = asyncio.Lock()

    async def complete(self, ask: Ask) -> Answer:
        """See `Service`."""
        if self.draining:
            raise RefusedError(Refusal.UNAVAILABLE, "the daemon is draining: it stops soon", retry_after_s=5.0)
        return await self._submission.submit(ask)

    def ready(self) -> str:
        """See `Service`."""
        if self.draining:
            return "draining"
        return "" if self._mind.fleet.nodes_up() else "no node is up"

    def host(self) -> HostSnapshot:
        """See `Service`."""
        tally = self._tally
        return HostSnapshot(
            version=__version__,
            uptime_s=time.monotonic() - self._started_s,
            draining=self.draining,
            requests=tally.requests,
            refused=tally.refused,
            failed=tally.failed,
            finished=tally.finished,
            slo_met=tally.slo_met,
            slo_missed=tally.slo_missed,
            tokens_out=tally.tokens_out,
        )

    def models(self) -> list[ModelSnapshot]:
        """See `Service`."""
        known = {spec.name for spec in self._models}
        return sorted(
            (one for one in snapshot(self._mind.fleet, time.monotonic()).models if one.name in known),
            key=lambda one: one.name,
        )

    def nodes(self) -> list[NodeSnapshot]:
        """See `Service`."""
        return list(snapshot(self._mind.fleet, time.monotonic()).nodes)

    def instances(self) -> list[InstanceSnapshot]:
        """See `Service`."""
        return list(snapshot(self._mind.fleet, time.monotonic()).instances)

    def requests(self) -> list[RequestSnapshot]:
        """See `Service`."""
        return list(snapshot(self._mind.fleet, time.monotonic()).requests)

    def profiles(self) -> list[Profile]:
        """See `Service`."""
        return list(self._mind.fleet.profiles.values())

    def created_unix_s(self, name: ModelName) -> int:
        """See `Service`."""
        return int(self._models.registered(name).added_at)

    async def register(self, registration: ModelRegistration) -> ModelSnapshot:
        """See `Service`."""
        async with self._changing:
            model = await asyncio.to_thread(examine, registration)
            check_precisions(self._models.resolve(model).shape, self._nodes)
            spec = self._models.add(model)
            await self._records.put_model(model)
            self._texts.forget(Path(model.path))
            self._loop.hear(ModelAdded(spec=spec))
        log.info("model %s: %s", model.name, model.path)
        return next(one for one in self.models() if one.name == model.name)

    async def remove(self, name: ModelName) -> None:
        """See `Service`."""
        async with self._changing:
            model = self._models.remove(name)
            await self._records.remove_model(name)
            self._texts.forget(Path(model.path))
            self._loop.hear(ModelRemoved(name=name))
        log.info("model %s: forgotten", name)

    def load(self, name: ModelName) -> None:
        """See `Service`."""
        self._models.spec(name)
        self._loop.hear(WarmUpAsked(name=name))

    def unload(self, name: ModelName) -> None:
        """See `Service`."""
        self._models.spec(name)
        self._loop.hear(UnloadAsked(name=name))

    def release(self, name: ModelName) -> None:
        """See `Service`."""
        self._models.spec(name)
        self._loop.hear(ModelReleased(name=name))

    def subscribe(self, after: int) -> Follower:
        """See `Service`."""
        return self._feed.follow(after)
