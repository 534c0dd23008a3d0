"""Who measures what, and who is told what was measured?

A node measures by itself what it was given without a measured profile; what it loads while another shape is measured
is served by an estimate from that, like any that comes later. Nodes of the same hardware measure a shape once:
whoever ends a stage first tells the others, through here, and they stop. A measurement that was cut off when it was
good enough to serve with goes on wherever the shape is loaded next.
"""

from llmhostd.domain.actions import HostAction
from llmhostd.domain.commands import LearnProfile, MeasureProfile
from llmhostd.domain.ids import HardwareKey, InstanceId, ModelName, NodeId
from llmhostd.domain.model import ModelState
from llmhostd.domain.reports import ProfileMeasured, ProfileProgressed
from llmhostd.host.budget import Budget
from llmhostd.host.fleet import Fleet
from llmhostd.host.instance import Instance
from llmhostd.host.residency import Residency


class Measuring:
    """Orders measurements, and hands them on."""

    def __init__(self, fleet: Fleet, budget: Budget, residency: Residency) -> None:
        self._fleet = fleet
        self._budget = budget
        self._residency = residency
        self._asked: dict[ModelName, None] = {}
        self._ordered: dict[InstanceId, ModelName] = {}
        """Where what was asked for is measured; not what nodes measure by themselves."""
        self._again: dict[ModelName, None] = {}
        """What was cut short once since it was asked for: two that have no room together would take turns for ever."""

    def ask(self, name: ModelName) -> None:
        """Measure a model wherever it is loaded, as soon as it is."""
        self._asked[name] = None
        self._again.pop(name, None)

    def cut_short(self) -> list[ModelName]:
        """Ask once more for what was not measured to its end: its worker died, or it was unloaded. Returns those."""
        lost = [one for one in self._ordered if one not in self._fleet.instances]
        models = dict.fromkeys(self._ordered.pop(one) for one in lost)
        once_more = [name for name in models if name not in self._again]
        self._asked |= dict.fromkeys(once_more)
        self._again |= dict.fromkeys(once_more)
        return once_more

    def progressed(self, event: ProfileProgressed) -> None:
        """Know that an order was carried out, if it was to its end."""
        if event.done >= event.total:
            self._ordered.pop(event.instance_id, None)

    def go_on(self, now: float) -> list[HostAction]:
        """Order the measurements that are wanted and can begin."""
        actions: list[HostAction] = []
        for name in list(self._asked):
            loaded = [each for each in self._fleet.instances_of(name) if each.loaded]
            ready = [each for each in loaded if each.measuring or self._has_room(each)]
            for one in ready:
                self._ordered[one.id] = name
                actions += self._order(one, now, "asked to measure it again", asked=True)
            if ready or name not in self._fleet.models:
                del self._asked[name]
        for one in self._cut_off():
            actions += self._order(one, now, "what was measured of it so far is coarse, and nobody measures on")
        return actions

    def hand_on(self, event: ProfileMeasured, *, news: bool) -> list[HostAction]:
        """Tell the other nodes of that hardware which have the shape what was measured: they need not do it too."""
        if not event.profile.measured:  # what a node learned of an estimate, which it measures still
            return []
        by = self._fleet.instances.get(event.instance_id)
        if by is not None and not event.profile.coarse:
            by.measuring = ""
        if not news:  # only how far one node is from it
            return []
        if by is not None and by.taught and event.profile.coarse:
            return []  # two who end a stage at once would stop each other: the first goes on
        key = (event.profile.shape_key, event.profile.hardware_key)
        others = [
            one for one in self._fleet.instances.values() if one.profile_key == key and one.id != event.instance_id
        ]
        told: dict[NodeId, Instance] = {}
        for one in others:
            one.measuring, one.taught = "", True
            self._ordered.pop(one.id, None)
            if one.node_id != event.node_id:
                told.setdefault(one.node_id, one)
        because = f"{event.node_id} has the same hardware and measured it"
        return [
            LearnProfile(node_id=node_id, instance_id=one.id, profile=event.profile, because=because)
            for node_id, one in told.items()
        ]

    def estimate_coming(self, hardware_key: HardwareKey, now: float) -> list[HostAction]:
        """Let those that load without a profile be served by an estimate, too, now that something was measured there.

        Their nodes measure them later, when nobody waits.
        """
        actions: list[HostAction] = []
        for one in self._fleet.estimate_coming(hardware_key):
            self._residency.profiled(one, now)
            profile = self._fleet.profile_of(one)
            if profile is not None and one.state is not ModelState.COLD:
                because = f"{one.model} was never measured on this hardware, but others were"
                told = LearnProfile(node_id=one.node_id, instance_id=one.id, profile=profile, because=because)
                actions.append(told)
            actions += self._residency.settle(one, now, f"{one.model} was estimated")
        return actions

    def _cut_off(self) -> list[Instance]:
        """The first instance that could measure on, of every shape that nobody measures to its end."""
        measured_on = [one.profile_key for one in self._fleet.instances.values() if one.measuring]
        chosen: list[Instance] = []
        for one in self._fleet.instances.values():
            profile = self._fleet.profile_of(one)
            coarse = profile is not None and profile.coarse
            if coarse and one.loaded and one.profile_key not in measured_on and self._has_room(one):
                measured_on.append(one.profile_key)
                chosen.append(one)
        return chosen

    def _order(self, instance: Instance, now: float, because: str, *, asked: bool = False) -> list[HostAction]:
        """Samples run in packed weights: it is promised what it holds then."""
        instance.measuring, instance.taught = instance.measuring or "asked", False
        order = MeasureProfile(node_id=instance.node_id, instance_id=instance.id, because=because, asked=asked)
        return [order, *self._residency.settle(instance, now, f"{instance.model} is to be measured")]

    def _has_room(self, instance: Instance) -> bool:
        """Whether its node has what it holds once its weights are packed, or others there can give way."""
        before, instance.measuring = instance.measuring, "asked"
        short_bytes = self._budget.shortage_bytes(instance)
        instance.measuring = before
        return short_bytes <= 0
