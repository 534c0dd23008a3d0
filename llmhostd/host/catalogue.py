"""Which models may be asked for, and which should be loaded before anybody asks?"""

from llmhostd.domain.actions import HostAction
from llmhostd.domain.events import (
    MeasureAsked,
    ModelAdded,
    ModelReleased,
    ModelRemoved,
    QuarantineKnown,
    UnloadAsked,
    WarmUpAsked,
)
from llmhostd.domain.ids import ModelName
from llmhostd.domain.model import ModelSpec
from llmhostd.host.budget import Budget
from llmhostd.host.families import computes, may_serve
from llmhostd.host.fleet import Fleet, ModelRecord
from llmhostd.host.instance import Instance
from llmhostd.host.measuring import Measuring
from llmhostd.host.recovery import Recovery
from llmhostd.host.residency import Residency
from llmhostd.memory.kv_demand import KvDemandPolicy, OutputLengths


class Catalogue:
    """Follows what operators say about models."""

    def __init__(
        self,
        fleet: Fleet,
        budget: Budget,
        residency: Residency,
        recovery: Recovery,
        measuring: Measuring,
        kv: KvDemandPolicy,
    ) -> None:
        self._fleet = fleet
        self._budget = budget
        self._residency = residency
        self._recovery = recovery
        self._measuring = measuring
        self._kv = kv
        self._wanted: dict[ModelName, None] = {}

    def added(self, event: ModelAdded, now: float) -> list[HostAction]:
        """Let a model be asked for; instances of an older checkpoint of that name leave once they are idle."""
        spec = event.spec
        before = self._fleet.models.get(spec.name)
        if before is not None and not before.removed and _only_room_differs(before.spec, spec):
            before.spec, before.shape_key = spec, spec.shape.key
        else:
            outputs = before.outputs if before else OutputLengths(self._kv)
            self._fleet.models[spec.name] = ModelRecord(spec, spec.shape.key, outputs)
        if spec.adapter is not None:
            return []
        actions: list[HostAction] = []
        for instance in list(self._fleet.instances_of(spec.name)):
            if self._fleet.current(instance):
                instance.closed = False  # the model was something else meanwhile
                continue
            if may_serve(instance.shape, spec):  # only its room for adapters is another
                self._wanted[spec.name] = None
            actions += self._dismiss(instance, now)
        return actions

    def removed(self, event: ModelRemoved, now: float) -> list[HostAction]:
        """Let nobody ask for it any more. What runs, runs to its end; what waits for it is refused."""
        model = self._fleet.models.get(event.name)
        if model is None:
            return []
        model.removed = True
        self._wanted.pop(event.name, None)
        actions = self._recovery.give_up(event.name, f"{event.name} was removed")
        if model.spec.adapter is not None:
            self.forget_removed()
            return actions
        for instance in list(self._fleet.instances_of(event.name)):
            actions += self._dismiss(instance, now)
        self.forget_removed()
        return actions

    def released(self, event: ModelReleased, now: float) -> list[HostAction]:  # noqa: ARG002 - as the others
        """Let a quarantined model try again."""
        model = self._fleet.models.get(event.name)
        if model is not None:
            model.quarantined = model.broken = ""
            model.broken_until_s = 0.0
            model.crashes_in_a_row = 0
        return []

    def quarantine_known(self, event: QuarantineKnown, now: float) -> list[HostAction]:  # noqa: ARG002 - as the others
        """Let a model that took its workers down in an earlier run not try again by itself."""
        model = self._fleet.models.get(event.model)
        if model is not None:
            model.quarantined = event.because
        return []

    def unload_asked(self, event: UnloadAsked, now: float) -> list[HostAction]:
        """Unload all of a model's instances as soon as they are idle."""
        self._wanted.pop(event.name, None)
        actions: list[HostAction] = []
        for instance in list(self._fleet.instances_of(event.name)):
            actions += self._dismiss(instance, now)
        return actions

    def warm_up_asked(self, event: WarmUpAsked, now: float) -> list[HostAction]:
        """Load a model as soon as a node has the memory; at once, too, if its last load failed just now."""
        if self._offered(event.name):
            base = self._fleet.models.get(self._fleet.models[event.name].spec.served_by)
            if base is not None:
                base.broken_until_s = now
            self._wanted[event.name] = None
        return []

    def measure_asked(self, event: MeasureAsked, now: float) -> list[HostAction]:  # noqa: ARG002 - as the others
        """Measure a model wherever it is loaded; where it is nowhere, as soon as it is loaded."""
        if self._offered(event.name):
            self._measuring.ask(event.name)
            if next(self._fleet.instances_of(event.name), None) is None:
                self._wanted[event.name] = None
        return []

    def warm_up(self, now: float) -> list[HostAction]:
        """Load who is wanted and fits now, in the order of asking."""
        actions: list[HostAction] = []
        self._wanted |= dict.fromkeys(filter(self._offered, self._measuring.cut_short()))
        for name in list(self._wanted):
            model, mine = self._fleet.models[name], list(self._fleet.instances_of(name))
            # Not before it is loaded: its worker may die until then.
            if self._fleet.unloadable(model, now) or any(one.loaded and self._fleet.current(one) for one in mine):
                del self._wanted[name]
                continue
            nodes = [node for node in self._fleet.nodes_free() if computes(node.spec, model.spec)]
            drafts = [self._residency.draft(model, node, now) for node in nodes]
            fitting = [draft for draft in drafts if self._budget.shortage_bytes(draft) <= 0]
            if fitting and not mine:
                self._fleet.add(fitting[0])
                actions += self._residency.settle(fitting[0], now, f"{name} is to be warm before anybody asks")
        return actions

    def forget_removed(self) -> None:
        """Drop the records of removed models that nothing runs of any more."""
        for name, model in list(self._fleet.models.items()):
            if model.removed and not self._in_use(name):
                del self._fleet.models[name]

    def _offered(self, name: ModelName) -> bool:
        """Whether it may be asked for; one that was removed is here until what runs of it has ended."""
        model = self._fleet.models.get(name)
        return model is not None and not model.removed

    def _in_use(self, name: ModelName) -> bool:
        instance = next((one for one in self._fleet.instances.values() if one.model == name), None)
        return instance is not None or any(each.load.shape.model == name for each in self._fleet.requests.values())

    def _dismiss(self, instance: Instance, now: float) -> list[HostAction]:
        instance.unload_asked = True
        return self._residency.settle(instance, now, "asked to unload")


def _only_room_differs(before: ModelSpec, after: ModelSpec) -> bool:
    """Whether a model is what it was, but for the room for adapters that its base is loaded with."""
    return before.shape != after.shape and before.shape.without_room() == after.shape.without_room()
