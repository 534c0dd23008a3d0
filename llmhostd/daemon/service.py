"""How does the daemon look to the API?"""

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from llmhostd import __version__
from llmhostd.api.nearest import nearest
from llmhostd.api.service import Ask, CallRecord, KeptCall, ModelRegistration, Moving, RefusedError, Stays
from llmhostd.daemon.adapter_registration import check_room
from llmhostd.daemon.answer import Answer
from llmhostd.daemon.decisions import DecisionFeed, Follower
from llmhostd.daemon.journaling import Journaling
from llmhostd.daemon.known_profiles import known_profiles
from llmhostd.daemon.loop import HostLoop
from llmhostd.daemon.measurements import Measurements
from llmhostd.daemon.mind import Mind
from llmhostd.daemon.models import Models
from llmhostd.daemon.node_defaults import ExcludedDevice
from llmhostd.daemon.opening import Opening
from llmhostd.daemon.precisions import check_precisions
from llmhostd.daemon.records import Records
from llmhostd.daemon.registration import examine
from llmhostd.daemon.returning import Return
from llmhostd.daemon.shelf import Shelf
from llmhostd.daemon.submission import Submission
from llmhostd.daemon.tally import Tally
from llmhostd.daemon.texts import Texts
from llmhostd.domain.actions import DeclineMove, Refusal
from llmhostd.domain.errors import CallerError, UnknownNameError
from llmhostd.domain.events import (
    DrainAsked,
    DrainEnded,
    MeasureAsked,
    ModelAdded,
    ModelReleased,
    ModelRemoved,
    MoveAsked,
    ProfileKnown,
    UnloadAsked,
    WarmUpAsked,
)
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import ModelName, NodeId, RequestId
from llmhostd.domain.model import ModelSpec, ModelState
from llmhostd.domain.profile import Profile
from llmhostd.domain.snapshot import (
    HostSnapshot,
    InstanceSnapshot,
    ModelSnapshot,
    NodeSnapshot,
    RequestSnapshot,
    UsageRow,
)
from llmhostd.host.openness import why_closed
from llmhostd.host.snapshots import MindSnapshot
from llmhostd.state.policy import AdapterPolicy

log = logging.getLogger(__name__)


class Daemon:
    """Implements `api.service.Service` with the parts that `compose` made."""

    def __init__(
        self,
        *,
        nodes: Sequence[NodeSpec],
        mind: Mind,
        loop: HostLoop,
        models: Models,
        records: Records,
        texts: Texts,
        feed: DecisionFeed,
        tally: Tally,
        measurements: Measurements,
        submission: Submission,
        shelf: Shelf,
        returned: Return,
        journaling: Journaling,
        opening: Opening,
        adapters: AdapterPolicy,
        left_out: Sequence[ExcludedDevice],
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
        self._measurements = measurements
        self._submission = submission
        self._shelf = shelf
        self._returned = returned
        self._journaling = journaling
        self._opening = opening
        self._adapters = adapters
        self._left_out = tuple(f"{one.device}: {one.because}" for one in left_out)
        self._started_s = time.monotonic()
        self._changing = asyncio.Lock()

    async def complete(self, ask: Ask, record: CallRecord) -> Answer:
        """See `Service`."""
        if self.draining:
            raise RefusedError(Refusal.UNAVAILABLE, "the daemon is draining: it stops soon", retry_after_s=5.0)
        return await self._submission.submit(ask, record)

    async def kept(self, call_id: str) -> KeptCall:
        """See `Service`."""
        return await self._shelf.kept(call_id)

    async def forget(self, call_id: str) -> None:
        """See `Service`."""
        await self._shelf.drop(call_id)

    def ready(self) -> str:
        """See `Service`."""
        if self.draining:
            return "draining"
        return why_closed(self._look().nodes)

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
            left_out=self._left_out,
            last_run=self._returned.ended,
            returned=self._returned.goes_on,
            not_stored=tuple(filter(None, (self._records.trouble, self._journaling.ended))),
        )

    def models(self) -> list[ModelSnapshot]:
        """See `Service`."""
        known = {spec.name for spec in self._models}
        return [
            msgspec.structs.replace(one, measured=self._measurements.ended(one.name))
            for one in sorted(self._look().models, key=lambda one: one.name)
            if one.name in known
        ]

    def nodes(self) -> list[NodeSnapshot]:
        """See `Service`."""
        return list(self._look().nodes)

    def instances(self) -> list[InstanceSnapshot]:
        """See `Service`."""
        return list(self._look().instances)

    def requests(self) -> list[RequestSnapshot]:
        """See `Service`."""
        return list(self._look().requests)

    def profiles(self) -> list[Profile]:
        """See `Service`."""
        return self._measurements.profiles()

    def added(self, name: ModelName) -> tuple[int, ModelName | None]:
        """See `Service`."""
        model = self._models.registered(name)
        return int(model.added_at), model.adapter.base if model.adapter else None

    def directory(self, name: ModelName) -> Path:
        """See `Service`."""
        return Path(self._models.registered(name).path)

    async def register(self, registration: ModelRegistration) -> ModelSnapshot:
        """See `Service`."""
        async with self._changing:
            model = await asyncio.to_thread(examine, registration, self._models.known())
            check_precisions(self._models.resolve(model).shape, self._nodes)
            check_room(model, self._nodes, self._adapters)
            await self._records.release(model.name)  # what took workers down may not be what lies there now
            await self._records.put_model(model)
            changed = self._models.add([model])
            self._texts.forget(Path(model.path))
            self._tell_changed(changed)
            self._loop.hear(ModelReleased(name=model.name))
        log.info("model %s: %s", model.name, model.path)
        return next(one for one in self.models() if one.name == model.name)

    async def remove(self, name: ModelName) -> None:
        """See `Service`."""
        async with self._changing:
            model, changed = self._models.remove(name)
            try:
                await self._records.release(name)
                await self._records.remove_model(name)
            except RefusedError:
                self._models.add([model])
                raise
            self._texts.forget(Path(model.path))
            self._loop.hear(ModelRemoved(name=name))
            self._tell_changed(changed)
        log.info("model %s: forgotten", name)

    def load(self, name: ModelName) -> None:
        """See `Service`."""
        self._models.spec(name)
        for one in self._look().models:
            if one.name == name and one.state is ModelState.QUARANTINED:
                because = f"{name} is quarantined: {one.because}; `llmhostd models release {name}` lets it try again"
                raise CallerError(f"name: {because}", field="name")
        self._loop.hear(WarmUpAsked(name=name))

    def unload(self, name: ModelName) -> None:
        """See `Service`."""
        adapter = self._models.spec(name).adapter
        if adapter is not None:
            because = f"{name} is an adapter and holds next to nothing; unload {adapter.base}, its base"
            raise CallerError(f"name: {because}", field="name")
        self._loop.hear(UnloadAsked(name=name))

    async def release(self, name: ModelName) -> None:
        """See `Service`."""
        base = self._models.spec(name).served_by
        await self._records.release(base)
        self._loop.hear(ModelReleased(name=base))

    def measure(self, name: ModelName) -> None:
        """See `Service`."""
        self._models.spec(name)
        self._loop.hear(MeasureAsked(name=name))

    async def drain(self, node_id: NodeId) -> None:
        """See `Service`."""
        self._check_node(node_id)
        await self._records.drain(node_id)
        self._loop.hear(DrainAsked(node_id=node_id))
        self._opening.look()

    async def end_drain(self, node_id: NodeId) -> None:
        """See `Service`."""
        self._check_node(node_id)
        await self._records.end_drain(node_id)
        self._loop.hear(DrainEnded(node_id=node_id))
        self._opening.look()

    def move(self, request_id: RequestId, node_id: NodeId) -> Moving:
        """See `Service`."""
        self._check_node(node_id)
        live = [one.id for one in self._look().requests]
        if request_id not in live:
            hint = nearest(request_id, live) or "; none is running"
            raise UnknownNameError(f"there is no request {request_id[:100]!r}{hint}", field="request_id")
        return self._moved([request_id], node_id)

    def move_model(self, name: ModelName, node_id: NodeId) -> Moving:
        """See `Service`."""
        self._models.registered(name)
        self._check_node(node_id)
        seen = self._look()
        there = {one.id for one in seen.instances if one.node_id == node_id}
        mine = [one for one in seen.requests if one.model == name and one.instance_id]
        to_stay = [one.id for one in mine if one.instance_id in there and not (one.moving_to or one.follows_to)]
        return self._moved([one.id for one in mine if one.id not in to_stay], node_id)

    def _moved(self, asked: Sequence[RequestId], node_id: NodeId) -> Moving:
        """Let the mind decide about one after the other, and pick out what it declined."""
        goes: list[RequestId] = []
        stays: list[Stays] = []
        for name in asked:
            after = self._feed.last
            self._loop.hear(MoveAsked(request_id=name, node_id=node_id))
            said = [one for one in self._feed.recent if one.sequence > after and one.subject == name]
            declined = next((one for one in said if one.kind == DeclineMove.__name__), None)
            if declined is None:
                goes.append(name)
            else:
                stays.append(Stays(id=name, because=declined.because))
        return Moving(goes=goes, stays=stays)

    async def usage(self, *, per_day: bool, since: str) -> list[UsageRow]:
        """See `Service`."""
        return await self._records.read_usage(per_day=per_day, since=since)

    def subscribe(self, after: str) -> Follower:
        """See `Service`."""
        return self._feed.follow(after)

    def _tell_changed(self, specs: Sequence[ModelSpec]) -> None:
        """Let the mind know models that are new, or others than before."""
        for spec in specs:
            self._loop.hear(ModelAdded(spec=spec))
        for profile in (one for spec in specs for one in known_profiles(self._nodes, spec)):
            self._loop.hear(ProfileKnown(profile=profile))

    def _check_node(self, node_id: NodeId) -> None:
        known = [node.id for node in self._nodes]
        if node_id not in known:
            raise UnknownNameError(f"there is no node {node_id[:100]!r}{nearest(node_id, known)}", field="node_id")

    def _look(self) -> MindSnapshot:
        return self._mind.snapshot(time.monotonic())
