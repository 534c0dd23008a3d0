"""Which instance is loaded, rested or unloaded next?

In the background, beside iterations: at most one load or rest per node at a time, because two would slow each other and
the device. Rests and unloads wait until their instance is idle, so that no request is lost to them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmhostd.domain.ids import InstanceId
from llmhostd.domain.node_events import BeginLoad, BeginRest, BeginUnload, NodeAction
from llmhostd.node.device import Device
from llmhostd.node.instance import NodeInstance
from llmhostd.node.states import Phase, Trigger


@dataclass(slots=True)
class Lifecycle:
    """What was ordered and could not begin yet."""

    instances: Mapping[InstanceId, NodeInstance]
    background: InstanceId | None = None
    """The instance that loads or rests now."""
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
        """Begin what can begin, in the order of the orders."""
        actions: list[NodeAction] = []
        for instance_id in list(self._ordered):
            one = self.instances.get(instance_id)
            action = None if one is None else self._begin(one, device)
            if action is not None:
                actions.append(action)
            if one is None or not _waits(one):
                del self._ordered[instance_id]
        return actions

    def _begin(self, one: NodeInstance, device: Device) -> NodeAction | None:
        startable = one.phase is Phase.QUEUED or (one.computes and not device.busy_with(one.id))
        if one.unload_because is not None and startable and one.idle:
            one.move(Trigger.UNLOAD_BEGUN)
            device.agenda.touch(one.id)
            return BeginUnload(instance_id=one.id, because=one.unload_because)
        if self.background is not None or not startable:
            return None
        if one.phase is Phase.QUEUED:  # even if it is to be unloaded: requests wait for it
            self.background = one.id
            one.move(Trigger.LOAD_BEGUN)
            return BeginLoad(instance_id=one.id, because=one.because)
        if one.rest_because is None or not one.idle:
            return None
        because, one.rest_because = one.rest_because, None
        self.background = one.id
        one.move(Trigger.REST_BEGUN)
        device.agenda.touch(one.id)
        return BeginRest(instance_id=one.id, because=because)


def _waits(one: NodeInstance) -> bool:
    """Whether an order of it is still to begin."""
    if one.phase is Phase.UNLOADING:
        return False
    return one.phase is Phase.QUEUED or one.rest_because is not None or one.unload_because is not None
