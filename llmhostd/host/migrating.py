"""How do streams come to another node without their callers noticing? (ServerlessLLM §5.3, §5.4.)

Every migration under way is looked at at the end of every step: whatever has become of its source, its destination or
its request, it goes on by the table of `migration.live_migration`. What moves, and where to, is decided by others.
"""

from collections.abc import Sequence

from llmhostd.compute.shadow_validation import Verdict
from llmhostd.domain.actions import HostAction
from llmhostd.domain.commands import CancelRequest, RecallRequest, StageRequest
from llmhostd.domain.ids import InstanceId, NodeId, RequestId
from llmhostd.host.budget import Budget
from llmhostd.host.fleet import Fleet, NodeRecord
from llmhostd.host.instance import Instance
from llmhostd.host.offers import Offer, Offers
from llmhostd.host.placement import Placement
from llmhostd.host.request import LiveRequest
from llmhostd.host.residency import Residency
from llmhostd.migration.cost import resume_cost
from llmhostd.migration.live_migration import Migration, MigrationPolicy, Phase, Trigger, gap_is_small


class Migrating:
    """Begins live migrations and brings each to its end."""

    def __init__(
        self,
        fleet: Fleet,
        budget: Budget,
        offers: Offers,
        placement: Placement,
        residency: Residency,
        policy: MigrationPolicy,
    ) -> None:
        self._fleet = fleet
        self._budget = budget
        self._offers = offers
        self._placement = placement
        self._residency = residency
        self._policy = policy
        self._landing: dict[RequestId, tuple[InstanceId, int]] = {}
        """Streams that have switched and said nothing since: where they are, and how much they had said."""

    def may_move_live(self, request: LiveRequest) -> bool:
        """Whether a request has a stream that can go on while it moves. Others move at once: nobody sees a gap."""
        load = request.load
        return self._policy.live and load.latency_sensitive and request.submitted and load.decoding

    def may_begin(self, request: LiveRequest) -> bool:
        """Whether it is one of these, and not on its way already."""
        return self.may_move_live(request) and request.load.shape.id not in self._fleet.migrations

    def may_begin_soon(self, request: LiveRequest) -> bool:
        """Whether a stream has only just come where it is: once its context is computed again, it can move live."""
        load = request.load
        streams = load.latency_sensitive and request.submitted and load.tokens_out > 0
        return self._policy.live and streams and not load.decoding

    def destination(self, request: LiveRequest, now: float, nodes: Sequence[NodeRecord]) -> Offer | str:
        """Find the first instance on other nodes on which a stream could go on as it does now; or why there is none."""
        load = request.load
        model = self._fleet.models[load.shape.model]
        nodes = [node for node in nodes if request.instance_id not in node.load.instances]
        taking = [node for node in nodes if request.may_go_to(node.spec.id, now) and not self.full(node)]
        why = "no instance may take it"
        for instance in (
            *self._offers.existing(model, load, taking),
            *self._offers.drafts(model, load, now, taking),
        ):
            short_bytes = self._offers.shortage_bytes(instance, load)
            if short_bytes > 0:
                why = f"{instance.node_id} lacks {short_bytes / 2**20:.0f} MiB"
                continue
            offer = self._offers.offer_to_follow(instance, load, now)
            if offer.verdict.accepted:
                return offer
            why = f"on {instance.node_id} {offer.verdict.because}"
        return why

    def full(self, node: NodeRecord) -> bool:
        """Whether as many streams as may are on their way to a node."""
        return sum(len(one.arriving) for one in self._fleet.instances_on(node)) >= self._policy.most_arriving

    def begin(self, request: LiveRequest, offer: Offer, now: float, because: str) -> list[HostAction]:
        """Let a stream follow an offer: it stays where it is until it has caught up there."""
        name, instance = request.load.shape.id, offer.instance
        if request.instance_id is None:
            raise ValueError(f"{name} runs nowhere")
        self._fleet.migrations[name] = Migration(request.instance_id, instance.id, because, now)
        if instance.id not in self._fleet.instances:
            self._fleet.add(instance)
        instance.arriving[name] = request.load
        instance.last_used_s = now
        actions = self._residency.settle(instance, now, f"{name} is to come; {because}")
        return actions + self._look(name, now)

    def go_on(self, now: float) -> list[HostAction]:
        """Look at every migration under way."""
        self._landing = {name: at for name, at in self._landing.items() if self._has_just_come(name, *at)}
        actions = self._keep_up(now)
        return actions + [action for name in list(self._fleet.migrations) for action in self._look(name, now)]

    def hurry(self, name: RequestId, now: float, because: str) -> list[HostAction]:
        """Let a stream on its way, if it is, go on at its destination at once, however far that is."""
        request, migration = self._fleet.requests.get(name), self._fleet.migrations.get(name)
        if request is None or migration is None:
            return []
        instance = self._fleet.instances[migration.destination]
        if migration.phase is Phase.PREPARING or not self._has_memory(instance, self._fleet.node_of(instance)):
            return self._abandon(name, Trigger.GIVEN_UP, now, because)
        migration.move(Trigger.HURRIED)
        return self._switch(request, migration, _as_it_is(request, migration, instance), now, because)

    def call_off(self, name: RequestId, now: float, because: str) -> list[HostAction]:
        """Let a stream stay where it is, if it is on its way."""
        return self._abandon(name, Trigger.GIVEN_UP, now, because) if name in self._fleet.migrations else []

    def give_up_on(self, node: NodeRecord, now: float, because: str) -> list[HostAction]:
        """Let nothing more come to a node."""
        return [
            action
            for instance in list(self._fleet.instances_on(node))
            for name in list(instance.arriving)
            for action in self._abandon(name, Trigger.GIVEN_UP, now, because)
        ]

    def dropped(self, node_id: NodeId, name: RequestId, now: float, because: str) -> list[HostAction]:
        """Know that a node holds nothing any more of what was staged there."""
        node = self._fleet.nodes[node_id]
        if node.dropping.pop(name, None) is not None:
            return []
        migration = self._fleet.migrations.get(name)
        if migration is None or migration.destination not in node.load.instances:
            return []  # it was submitted there meanwhile, with all of its tokens
        return self._abandon(name, Trigger.GIVEN_UP, now, because, dropped=True)

    def _keep_up(self, now: float) -> list[HostAction]:
        """Promise destinations what their streams need by now: with every token that these say elsewhere it is more."""
        actions: list[HostAction] = []
        for instance_id in dict.fromkeys(one.destination for one in self._fleet.migrations.values()):
            instance = self._fleet.instances.get(instance_id)
            if instance is None or self._budget.granted(instance):
                continue
            if instance_id not in self._fleet.node_of(instance).station:
                actions += self._residency.settle(instance, now, f"streams on their way to {instance_id} said more")
        return actions

    def _look(self, name: RequestId, now: float) -> list[HostAction]:
        """Let one migration go on as far as it can now."""
        migration = self._fleet.migrations[name]
        request = self._fleet.requests.get(name)
        instance = self._fleet.instances.get(migration.destination)
        if instance is None or name not in instance.arriving:
            return self._abandon(name, Trigger.DESTINATION_LOST, now, "its destination is gone")
        if request is None:
            return self._abandon(name, Trigger.ENDED, now, "its stream has ended")
        if request.instance_id != migration.source:
            return self._source_lost(request, migration, instance, now)
        node = self._fleet.node_of(instance)
        if node.draining:
            return self._abandon(name, Trigger.GIVEN_UP, now, f"{node.spec.id} is being drained")
        if now - migration.began_s > self._policy.most_s:
            because = f"it has not caught up in {self._policy.most_s:.0f} s"
            return self._abandon(name, Trigger.GIVEN_UP, now, because)
        has_said = migration.says(request.load.context_tokens)
        if not self._has_memory(instance, node):
            return []
        if migration.phase is Phase.PREPARING:
            migration.move(Trigger.READY)
            return [self._round(request, migration, instance, migration.because)]
        return self._close_in(request, migration, instance, now) if has_said and migration.caught_up else []

    def _has_memory(self, instance: Instance, node: NodeRecord) -> bool:
        """Whether a request could be submitted to an instance at once."""
        known = self._fleet.profile_of(instance) is not None
        return known and instance.id not in node.station and self._budget.granted(instance)

    def _round(self, request: LiveRequest, migration: Migration, instance: Instance, because: str) -> HostAction:
        shape = request.load.moved_shape()
        return StageRequest(
            node_id=instance.node_id,
            instance_id=instance.id,
            request=shape,
            known_tokens=migration.send(shape.context_tokens),
            because=because,
        )

    def _close_in(self, request: LiveRequest, migration: Migration, instance: Instance, now: float) -> list[HostAction]:
        """Switch if the gap is small and the destination can take the stream; otherwise send another round."""
        context_tokens = request.load.context_tokens
        gap, load = migration.gap(context_tokens), request.load
        resume_s = resume_cost(instance.load, context_tokens).resume_s(gap + 1)
        token_s = self._token_s(self._fleet.instances[migration.source])
        why = gap_is_small(migration, context_tokens, resume_s, token_s, self._policy)
        because = f"{gap} tokens behind"
        if why and self._others_first(instance, now):
            return []
        if why:
            offer = self._offers.offer_to_follow(instance, load, now, migration.computed_tokens)
            if offer.verdict.accepted:
                migration.move(Trigger.GAP_SMALL)
                return self._switch(request, migration, offer, now, f"{migration.because}; {why}")
            because = f"{because}; {offer.verdict.because}"
        migration.move(Trigger.GAP_LARGE)
        return [self._round(request, migration, instance, because)] if gap else []

    def _others_first(self, instance: Instance, now: float) -> bool:
        """Whether a stream that comes to an instance would wait for more than what runs on its node and its own turn.

        That is, for another instance there to which a stream has just come, or where somebody is late.
        """
        others = [one for one in self._fleet.instances_on(self._fleet.node_of(instance)) if one is not instance]
        return any(
            load.latency_sensitive and (name in self._landing or load.headroom_s(now) < 0.0)
            for one in others
            for name, load in one.load.requests.items()
        )

    def _has_just_come(self, name: RequestId, instance_id: InstanceId, tokens_out: int) -> bool:
        request = self._fleet.requests.get(name)
        return request is not None and request.instance_id == instance_id and request.load.tokens_out == tokens_out

    def _token_s(self, source: Instance) -> float:
        """What a token takes at the source: an iteration of all that decodes there."""
        decodes = [one for one in source.load.requests.values() if one.decoding]
        if not decodes:
            return 0.0
        context_tokens = sum(one.context_tokens for one in decodes)
        return source.load.round_s(len(decodes), context_tokens, source.load.adapters_of(decodes))

    def _source_lost(
        self, request: LiveRequest, migration: Migration, instance: Instance, now: float
    ) -> list[HostAction]:
        """Let a stream whose place is gone go on where it was going, if anything was sent there."""
        name, node = request.load.shape.id, self._fleet.node_of(instance)
        ready = migration.phase is Phase.RECOMPUTING and self._has_memory(instance, node) and not node.draining
        if request.instance_id is not None or not ready:
            why_not = Trigger.SOURCE_LOST if migration.phase is Phase.PREPARING else Trigger.GIVEN_UP
            return self._abandon(name, why_not, now, "its stream has lost its place and cannot go on here yet")
        migration.move(Trigger.SOURCE_LOST)
        return self._switch(request, migration, _as_it_is(request, migration, instance), now, "its place is gone")

    def _switch(
        self, request: LiveRequest, migration: Migration, offer: Offer, now: float, because: str
    ) -> list[HostAction]:
        """Recall the source and submit the stream to its destination, which has computed nearly all of it."""
        name = request.load.shape.id
        del self._fleet.migrations[name], offer.instance.arriving[name]
        if request.instance_id is None:
            self._fleet.waiting.discard(request)
            actions = self._placement.place(request, offer, now, because)
        else:
            actions = self._placement.move(request, offer, now, because)
        request.load.computed_tokens = min(migration.computed_tokens, request.load.context_tokens - 1)
        self._landing[name] = offer.instance.id, request.load.tokens_out
        return actions

    def _abandon(
        self, name: RequestId, why: Trigger, now: float, because: str, *, dropped: bool = False
    ) -> list[HostAction]:
        """Let the stream be where it is; its destination drops what it was sent, unless it has done so."""
        migration = self._fleet.migrations.pop(name)
        told = migration.phase is Phase.RECOMPUTING and not dropped
        migration.move(why)
        instance = self._fleet.instances.get(migration.destination)
        actions: list[HostAction] = []
        if instance is None:
            return actions
        node = self._fleet.node_of(instance)
        if told and name in self._fleet.requests:
            node.dropping[name] = instance.id
            actions.append(RecallRequest(node_id=node.spec.id, request_id=name, because=because))
        elif told:
            actions.append(CancelRequest(node_id=node.spec.id, request_id=name, because=because))
        instance.arriving.pop(name, None)
        return actions + self._placement.vacated(instance, now, because)


def _as_it_is(request: LiveRequest, migration: Migration, instance: Instance) -> Offer:
    """What a destination offers a stream that cannot stay where it is: nothing is asked."""
    why = f"{migration.computed_tokens} of its {request.load.context_tokens} tokens are computed there"
    return Offer(instance, request.load, Verdict(True, 0.0, why))
