"""What was loaded when an earlier run of the daemon ended: what of it is loaded again, and when?

Most recently used first, on the node where it was, and only where nobody would notice: while no person is served there
and nobody waits, one after another, in memory that is free. Whatever a request loaded first, or would have outstayed by
now, needs no loading.
"""

from dataclasses import dataclass

import msgspec

from llmhostd.domain.actions import GiveUpPlacement, HostAction
from llmhostd.domain.commands import LoadInstance
from llmhostd.domain.events import PlacementKnown
from llmhostd.domain.ids import ModelName, NodeId
from llmhostd.host.budget import Budget
from llmhostd.host.fleet import Fleet, NodeRecord
from llmhostd.host.keep_alive import KeepAlivePolicy
from llmhostd.host.residency import Residency


@dataclass(frozen=True, slots=True)
class Remembered:
    """A model that was on a node."""

    model: ModelName
    node_id: NodeId
    resident: bool
    used_s: float
    """When it was last used; on the mind's clock, and mostly before its beginning."""


class Comeback:
    """Loads again what was loaded, when nobody would notice."""

    def __init__(self, fleet: Fleet, budget: Budget, residency: Residency, keep_alive: KeepAlivePolicy) -> None:
        self._fleet = fleet
        self._budget = budget
        self._residency = residency
        self._keep_alive = keep_alive
        self.awaited: list[Remembered] = []
        """What is still to be loaded, most recently used first."""

    def known(self, event: PlacementKnown, now: float) -> list[HostAction]:
        """Remember what was where."""
        one = Remembered(event.model, event.node_id, event.resident, now - event.unused_s)
        if event.node_id not in self._fleet.nodes:
            return [_give_up(one, f"there is no node {event.node_id} any more")]
        self.awaited = sorted([*self.awaited, one], key=lambda each: -each.used_s)
        return []

    def go_on(self, now: float) -> list[HostAction]:
        """Load what may be loaded now: at most one model per node at a time."""
        actions: list[HostAction] = []
        left: list[Remembered] = []
        for one in self.awaited:
            if any(each.node_id == one.node_id for each in self._fleet.instances_of(one.model)):
                continue
            lost = self._lost(one, now)
            if lost:
                actions.append(_give_up(one, lost))
            elif not self._quiet(self._fleet.nodes[one.node_id]):
                left.append(one)
            elif loads := self._load(one, now):
                actions += loads
            else:
                left.append(one)
        self.awaited = left
        return actions

    def _lost(self, one: Remembered, now: float) -> str:
        """Why it is not to be loaded again; empty: it is to be."""
        model = self._fleet.models.get(one.model)
        if model is None or model.removed:
            return f"there is no model {one.model} any more"
        if why := model.unloadable(now):
            return why
        profile = self._fleet.profiles.get((model.shape_key, self._fleet.nodes[one.node_id].spec.hardware_key))
        unused_s = now - one.used_s
        if profile and profile.measured and unused_s >= self._keep_alive.warm_s(profile.load_s + profile.first_run_s):
            return f"unused for {unused_s:.0f} s: it would have been unloaded by now"
        return ""

    def _quiet(self, node: NodeRecord) -> bool:
        """Whether a load there would delay nobody who waits, nor a person's tokens."""
        people_wait = len(self._fleet.waiting.stranded) + len(self._fleet.waiting.newcomers)
        if not node.up or node.draining or node.kept_for is not None or node.station or people_wait:
            return False
        return all(each.loaded and not each.waited_for for each in self._fleet.instances_on(node))

    def _load(self, one: Remembered, now: float) -> list[HostAction]:
        """Order it; nothing if the free memory of its node does not hold it."""
        node = self._fleet.nodes[one.node_id]
        instance = self._residency.draft(self._fleet.models[one.model], node, now)
        profile = self._fleet.profile_of(instance)
        instance.last_used_s = one.used_s
        instance.packs = one.resident and (
            profile is None or now - one.used_s < self._keep_alive.resident_s(profile.first_run_s)
        )
        if sum(self._budget.least_bytes(instance)) > node.promised.free_bytes:
            return []
        self._fleet.add(instance)
        was = f"was {'resident' if one.resident else 'warm'} when the daemon ended, unused for {now - one.used_s:.0f} s"
        actions = self._residency.settle(instance, now, f"{one.model} {was}")
        return [_because(each, f"{was}; nobody waits") for each in actions]


def _give_up(one: Remembered, because: str) -> GiveUpPlacement:
    return GiveUpPlacement(model=one.model, node_id=one.node_id, because=because)


def _because(action: HostAction, because: str) -> HostAction:
    return msgspec.structs.replace(action, because=because) if isinstance(action, LoadInstance) else action
