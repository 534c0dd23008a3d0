"""Which models' weights wait in memory that instances leave free?

Looked at now and again: those that are expected to save most are brought in, one at a time and only while nobody loads
(`memory.host_tier`). Whatever anybody else needs is given up in the same step.
"""

from llmhostd.domain.actions import HostAction
from llmhostd.domain.commands import KeepWeights, ReleaseWeights
from llmhostd.domain.hardware import NodeKind
from llmhostd.domain.ids import ModelName
from llmhostd.domain.model import ModelState
from llmhostd.domain.reports import WeightsKept
from llmhostd.domain.start import TierBytes
from llmhostd.host.fleet import Fleet, ModelRecord, NodeRecord
from llmhostd.host.starts import Starts
from llmhostd.memory.host_tier import AskRate, Candidate, HostTierPolicy, chosen, first_to_go

_RETRY_S = 600.0
"""What could not be brought in is tried again after this."""


class HostMemory:
    """Decides what is kept; workers carry it out."""

    def __init__(self, fleet: Fleet, starts: Starts, policy: HostTierPolicy) -> None:
        self._fleet = fleet
        self._starts = starts
        self._policy = policy
        self._looked_s = 0.0
        self._failed_s: dict[ModelName, float] = {}

    def asked(self, name: ModelName, now: float) -> None:
        """Count a request."""
        model = self._fleet.models.get(name)
        if model is not None:
            model.asked = model.asked or AskRate(self._policy.half_life_s)
            model.asked.asked(now)

    def kept(self, event: WeightsKept, now: float) -> list[HostAction]:
        """Hear what became of weights that were to be kept."""
        node, model = self._fleet.nodes[event.node_id], self._fleet.models.get(event.model)
        if node.bringing_in == event.model:
            node.bringing_in = None
        self._looked_s = min(self._looked_s, now - self._policy.look_every_s)  # the next one may come in
        if not event.kept_bytes:
            self._failed_s[event.model] = now
            node.promised.lent.pop(event.model, None)
            return []
        if event.model in node.promised.lent:
            node.promised.lent[event.model] = event.kept_bytes
        if model is not None:
            model.lies = TierBytes(memory_bytes=event.kept_bytes)
        return []

    def look(self, now: float) -> list[HostAction]:
        """Choose again, if it is time to."""
        if not self._policy.most_share or now - self._looked_s < self._policy.look_every_s:
            return []
        self._looked_s = now
        nodes = [node for node in self._fleet.nodes_open() if node.spec.kind is NodeKind.CPU]
        return [action for node in nodes for action in self._choose(node, now)]

    def give_way(self, now: float) -> list[HostAction]:
        """Give up what lies in memory that is not free any more, the least saving first."""
        actions: list[HostAction] = []
        for node in self._fleet.nodes.values():
            lent = node.promised.lent
            if not lent or node.promised.lent_bytes <= _free_bytes(node):
                continue
            known = [name for name in lent if name in self._fleet.models]
            kept = [self._candidate(self._fleet.models[name], node, now) for name in known]
            going = [*(name for name in lent if name not in known), *first_to_go(kept, _free_bytes(node))]
            actions += [self._release(node, name, "instances need its memory") for name in going]
        return actions

    def forget(self, node: NodeRecord) -> None:
        """Know that a worker is gone, and what it kept."""
        node.promised.lent.clear()
        node.bringing_in = None

    def _choose(self, node: NodeRecord, now: float) -> list[HostAction]:
        elsewhere = [name for each in self._fleet.nodes.values() if each is not node for name in each.promised.lent]
        candidates = [
            self._candidate(model, node, now)
            for name, model in self._fleet.models.items()
            if name not in elsewhere and self._may_be_kept(model, now)
        ]
        room_bytes = int(_free_bytes(node) * self._policy.most_share)
        names = chosen(candidates, room_bytes, self._policy.displaces)
        gone = [name for name in node.promised.lent if name not in names]
        actions: list[HostAction] = [self._release(node, name, "others save more in its place") for name in gone]
        missing = [one for one in candidates if one.name in names and not one.kept]
        if node.bringing_in is None and missing and not self._starts.loads_on(node):
            actions.append(self._keep(node, max(missing, key=lambda one: one.saves_per_s / one.bytes)))
        return actions

    def _may_be_kept(self, model: ModelRecord, now: float) -> bool:
        """One that was asked for, whose weights are where somebody looked, and that no instance has packed."""
        if model.removed or model.asked is None or model.lies is None or model.unloadable(now):
            return False
        if model.lies.remote_bytes:
            return False  # they come when it is loaded
        if now - self._failed_s.get(model.spec.name, -_RETRY_S) < _RETRY_S:
            return False
        return all(one.state is not ModelState.RESIDENT for one in self._fleet.instances_of(model.spec.name))

    def _candidate(self, model: ModelRecord, node: NodeRecord, now: float) -> Candidate:
        lies = model.lies or TierBytes(disk_bytes=model.spec.shape.weight_bytes)
        rate_per_s = model.asked.per_s(now) if model.asked else 0.0
        return Candidate(
            name=model.spec.name,
            bytes=max(lies.total_bytes, 1),
            saves_per_s=rate_per_s * self._starts.saved_s(lies.total_bytes, node.spec.hardware_key),
            last_asked_s=model.asked.last_s if model.asked else float("-inf"),
            kept=model.spec.name in node.promised.lent,
        )

    def _keep(self, node: NodeRecord, one: Candidate) -> HostAction:
        node.bringing_in = one.name
        node.promised.lent[one.name] = one.bytes
        because = (
            f"{one.bytes / 2**20:.0f} MiB that nobody needs save {one.saves_per_s * 3600:.2f} s of waiting an hour"
        )
        return KeepWeights(node_id=node.spec.id, model=one.name, because=because)

    def _release(self, node: NodeRecord, name: ModelName, because: str) -> HostAction:
        del node.promised.lent[name]
        if node.bringing_in == name:
            node.bringing_in = None
        return ReleaseWeights(node_id=node.spec.id, model=name, because=because)


def _free_bytes(node: NodeRecord) -> int:
    """What nobody was promised, nor holds still."""
    return max(min(node.promised.free_bytes, node.held.free_bytes), 0)
