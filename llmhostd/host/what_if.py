"""How would the box look if some requests had moved?

What preemption plans with: nothing is touched before all that must move is known to have a place. Every further
request is tried on the picture that those before it have left, so that they pass together and not each alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from llmhostd.compute.workload import NodeLoad, RequestLoad
from llmhostd.domain.ids import InstanceId
from llmhostd.host.fleet import NodeRecord
from llmhostd.host.instance import Instance


@dataclass(slots=True)
class WhatIf:
    """Differences to the box as it is."""

    emptied: dict[InstanceId, None] = field(default_factory=dict)
    """Instances that nothing is assigned to any more."""
    joined: dict[InstanceId, list[RequestLoad]] = field(default_factory=dict)
    """Requests that were assigned, by instance."""
    drafts: dict[InstanceId, Instance] = field(default_factory=dict)
    """Instances that do not exist yet."""

    def join(self, instance: Instance, request: RequestLoad, *, new: bool) -> None:
        """Assign a request."""
        if new:
            self.drafts[instance.id] = instance
        self.joined.setdefault(instance.id, []).append(request)

    def batch(self, instance: Instance) -> int:
        """How many requests that somebody waits for are assigned to an instance."""
        before = 0 if instance.id in self.emptied else instance.batch
        return before + sum(one.latency_sensitive for one in self.joined.get(instance.id, ()))

    def joining(
        self, node: NodeRecord, instances: Iterator[Instance], newcomer: tuple[Instance, RequestLoad]
    ) -> list[tuple[Instance, Sequence[RequestLoad]]]:
        """List whom a node's instances would take beyond what they have, a newcomer on one of them included."""
        here, request = newcomer
        joining: list[tuple[Instance, Sequence[RequestLoad]]] = [(here, (*self.joined.get(here.id, ()), request))]
        new = (one for one in self.drafts.values() if one.node_id == node.spec.id)
        if self.joined:
            others = (one for one in (*instances, *new) if one.id != here.id and one.id in self.joined)
            joining += [(one, self.joined[one.id]) for one in others]
        return joining

    def picture(self, there: NodeLoad, instance: Instance, ready_at_s: float) -> NodeLoad:
        """Draw what a node would work on beside what is there, with an instance, new or not, ready at some time."""
        new = {one.id: one.load for one in self.drafts.values() if one.node_id == instance.node_id}
        load = replace(there.instances.get(instance.id, instance.load), ready_at_s=ready_at_s)
        loads = {**there.instances, **new, instance.id: load}
        for key in self.emptied:
            if key in loads:
                loads[key] = replace(loads[key], requests={})
        for key, requests in self.joined.items():
            if key in loads:
                together = {**loads[key].requests, **{one.shape.id: one for one in requests}}
                loads[key] = replace(loads[key], requests=together)
        return NodeLoad(there.busy_until_s, loads)


AS_IT_IS = WhatIf()
"""Nothing moved; never changed."""
