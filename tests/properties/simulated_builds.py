"""What does the builder of a simulated node do? A load ends at once, or its graphs are there before its weights are."""

from imagined_instances import WARM_BYTES

from llmhostd.domain import node_events as does
from llmhostd.domain.model import ModelState


class Builds:
    """The loads of a `SimulatedNode`."""

    def compiled(self, now, luck="well"):
        """Of the load under way the graphs are there; or more of the weights."""
        self.now = now
        one = self.hosted.get(self.building)
        if one is None or one.broken or luck != "well" or self._computes(one):
            return
        if one.filling:
            self.tell(does.WeightsRead(instance_id=one.id, all_read=False))
            return
        one.filling = True
        self._loaded(one)

    def built(self, now, luck="well"):
        """The load under way ends."""
        self.now = now
        one = self.hosted.get(self.building)
        if one is not None and self._computes(one):
            return  # a worker hears nothing while it computes
        self.building = None
        if one is None or one.broken:
            return
        if luck != "well" and one.filling:
            self._give_up(one, "block `head`, chunk 3 is damaged", hopeless=True)
            return
        if luck != "well":
            self._gone(one, "model.safetensors: tensor lm_head.weight is missing")
            return
        filled, one.filling, one.state = one.filling, False, ModelState.WARM
        one.weights_bytes = max(one.weights_bytes, WARM_BYTES)
        self._report(one)
        if filled:
            self.tell(does.WeightsRead(instance_id=one.id, all_read=True))
        else:
            self._loaded(one)

    def _computes(self, one):
        return self.doing is not None and self.doing.instance_id == one.id

    def _loaded(self, one):
        one.weights_bytes = max(one.weights_bytes, WARM_BYTES)
        loaded = does.InstanceLoaded(
            instance_id=one.id, held_bytes=WARM_BYTES, kv_bytes_per_block=self._block_bytes(one),
            block_tokens=self.spec.block_tokens, filling=one.filling,
        )  # fmt: skip
        waiting, one.waiting = one.waiting, []
        self.tell(loaded, *(event for command in waiting for event in self._enter(one, command)))

    @property
    def _builds_from_nothing(self):
        one = self.hosted.get(self.building)
        return one is not None and not one.filling and not one.broken

    def _BeginLoad(self, action):  # noqa: N802
        assert self.building is None, "two loads at once"
        self.building = action.instance_id
        return ()
