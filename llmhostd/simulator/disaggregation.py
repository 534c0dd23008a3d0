"""What if prefill and decode had instances of their own? (SLINFER §IX-G, Table III.)

Every model is two: one that computes prompts and says the first token, and one that goes on from there. Whoever decides
knows nothing of it: it hosts twice as many models, and a request of the second kind comes with its keys and values,
which cross the link between nodes first. What they hold on the first node is free as soon as they leave.

Between the two a stream waits for the link, and perhaps for a load. No request of the second kind could have its next
token one TPOT SLO after its first, so it is promised it within the longest gap, and its pace counts from then. What
its caller is promised stays what it was: what the wait took must be won back, or the mean of the answer misses its SLO.
"""

from typing import Any

import msgspec

from llmhostd.compute.deadlines import AS_PROMISED
from llmhostd.domain.events import HostEvent, RequestArrived
from llmhostd.domain.ids import ModelName, RequestId
from llmhostd.domain.model import ModelSpec
from llmhostd.domain.reports import IterationReported
from llmhostd.domain.request import RequestShape
from llmhostd.simulator.box import Box
from llmhostd.simulator.world import World

PREFILL, DECODE = "prefill", "decode"


def stages(spec: ModelSpec) -> tuple[ModelSpec, ModelSpec]:
    """Make two models of one: for prompts, and for what comes after the first token."""
    prefill, decode = (msgspec.structs.replace(spec, name=_stage(spec.name, which)) for which in (PREFILL, DECODE))
    return prefill, decode


class DisaggregatedWorld(World):
    """A simulated box whose models are in two stages; callers see one."""

    def __init__(self, box: Box, *more: Any, link_bytes_per_s: float, **settings: Any) -> None:
        """Begin at time 0 as `World` does. `link_bytes_per_s`: between nodes."""
        self._link_bytes_per_s = link_bytes_per_s
        self._kv_bytes_per_token = {one.name: one.shape.kv_bytes_per_token for one in box.models}
        both = tuple(stage for one in box.models for stage in stages(one))
        super().__init__(msgspec.structs.replace(box, models=both), *more, **settings)

    def _tell(self, event: HostEvent) -> None:
        if isinstance(event, RequestArrived):
            event = RequestArrived(request=self._in_stage(event.request.id))
        super()._tell(event)
        if isinstance(event, IterationReported):
            for row in event.rows:
                seen = self.callers.observations[row.request_id]
                here = seen.told == (event.node_id, event.instance_id)
                if row.finish and here and not seen.answered:
                    self._hand_over(row.request_id)

    def _in_stage(self, request_id: RequestId) -> RequestShape:
        """The request as it is to be asked for now."""
        seen = self.callers.observations[request_id]
        shape = seen.asked.shape
        if not seen.token_s:
            return msgspec.structs.replace(shape, model=_stage(shape.model, PREFILL), max_tokens=1)
        said_s = seen.token_s[0]
        waits_s = (AS_PROMISED.longest_gap_slo_factor - 1) * shape.slo.tpot_s
        return msgspec.structs.replace(
            shape, model=_stage(shape.model, DECODE), tokens_out=1, grace_s=seen.grace_s,
            first_token_s=said_s + waits_s, last_token_s=said_s, given_tokens=shape.prompt_tokens,
        )  # fmt: skip

    def _hand_over(self, request_id: RequestId) -> None:
        """Send what was computed to where it goes on."""
        seen = self.callers.observations[request_id]
        seen.submissions = 0
        shape = seen.asked.shape
        takes_s = shape.prompt_tokens * self._kv_bytes_per_token[shape.model] / self._link_bytes_per_s
        self.later(self.now + takes_s, lambda _: self._ask(shape))


def _stage(name: ModelName, which: str) -> ModelName:
    return ModelName(f"{name}.{which}")
