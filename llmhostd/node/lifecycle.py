"""Which instance is loaded, rested or unloaded next?

In the background, beside iterations. Rests and unloads wait until their instance is idle, so that no request is lost to
them, and then go at once: they give memory back. Loads go one at a time per node, because two would slow each other and
the device, and only once the node really has their memory: those that somebody waits for first, in the order of the
orders, and what a rest destroyed last, when nobody else needs the builder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmhostd.domain.ids import InstanceId
from llmhostd.domain.node_events import AbandonLoad, BeginLoad, BeginRest, BeginUnload, NodeAction
from llmhostd.node.device import Device
from llmhostd.node.instance import NodeInstance
from llmhostd.node.memory import NodeMemory
from llmhostd.node.states import Phase, Trigger


@dataclass(slots=True)
class Lifecycle:
    """What was ordered and could not begin yet."""

    instances: Mapping[InstanceId, NodeInstance]
    memory: NodeMemory
    background: InstanceId | None = None
    """The instance that loads now."""
    _ordered: dict[InstanceId, None] = field(default_factory=dict)

    def look_at(self, one: NodeInstance) -> None:
        """Note that something about an instance changed that may let an order begin."""
        if one.phase is Phase.QUEUED or one.rest_because is not None or one.unload_because is not None:
            self._ordered[one.id] = None

    def completed(self, instance_id: InstanceId) -> None:
        """Note that a background operation is over."""
        if self.background == instance_id:
            self.background = None

    def advance(self, device: Device) -> list[NodeAction]:
        """Begin what can begin: first what gives memory back, then a load."""
        actions: list[NodeAction] = []
        for instance_id in list(self._ordered):
            one = self.instances.get(instance_id)
            action = None if one is None else self._release(one, device)
            if action is not None:
                actions.append(action)
            if one is None or not _waits(one):
                del self._ordered[instance_id]
        nearest = self._next_load() if self._ordered and self.background is None else None
        if nearest is not None and self.memory.may_load(nearest):
            actions.append(self._load(nearest))
        return actions

    def hopeless(self) -> AbandonLoad | None:
        """Give up the next load if it does not fit and nothing will give memory back; only when the device is idle."""
        one = self._next_load()
        if one is None or self.background is not None or (one.emptied and one.idle):
            return None
        others_go_on = any(each.present and not each.idle for each in self.instances.values())
        if others_go_on or self.memory.releasing() or self.memory.may_load(one):
            return None
        short_bytes = one.warm_bytes - self.memory.held.free_bytes
        one.move(Trigger.UNLOAD_BEGUN)
        self.memory.refresh(one)
        because = f"the node lacks {short_bytes / 1e6:.1f} MB to load it, and nothing on it will give any back"
        return AbandonLoad(instance_id=one.id, because=because)

    def _release(self, one: NodeInstance, device: Device) -> NodeAction | None:
        """Unload or rest an instance that is idle and was told to."""
        if not one.idle or device.busy_with(one.id) or not (one.computes or one.phase is Phase.QUEUED):
            return None
        if one.unload_because is not None:
            self._away(one, Trigger.UNLOAD_BEGUN, device)
            return BeginUnload(instance_id=one.id, because=one.unload_because)
        if one.rest_because is None or one.phase is not Phase.RESIDENT:
            return None
        because, one.rest_because = one.rest_because, None
        self._away(one, Trigger.REST_BEGUN, device)
        return BeginRest(instance_id=one.id, because=because)

    def _away(self, one: NodeInstance, trigger: Trigger, device: Device) -> None:
        self.memory.call_off(one)
        one.move(trigger)
        self.memory.refresh(one)
        device.agenda.touch(one.id)

    def _next_load(self) -> NodeInstance | None:
        """Whose turn it is with the builder. One that is to be unloaded too: requests wait for it, or it had gone."""
        ordered = [self.instances[key] for key in self._ordered]
        queued = [one for one in ordered if one.phase is Phase.QUEUED and not one.arriving]
        return min(queued, key=lambda one: (not one.waited_for, one.emptied and one.idle), default=None)

    def _load(self, one: NodeInstance) -> NodeAction:
        self.background = one.id
        one.move(Trigger.LOAD_BEGUN)
        self.memory.refresh(one)
        if not _waits(one):
            del self._ordered[one.id]
        return BeginLoad(instance_id=one.id, because=one.because)


def _waits(one: NodeInstance) -> bool:
    """Whether an order of it is still to begin."""
    if one.phase is Phase.UNLOADING:
        return False
    return one.phase is Phase.QUEUED or one.rest_because is not None or one.unload_because is not None
