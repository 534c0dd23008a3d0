"""Whose new instance comes first while memory is short? That of the model that more people ask for.

The bytes of a model's weights serve all callers of a busy model at once, as one batch, or the one caller of a rare one.
So while a model finds no memory on a node, one that far fewer ask for starts no new instance there. Instances that
exist go on, and whoever fits into one is served: this only orders who is loaded next. (SLINFER §VIII fills the largest
batch first among instances that exist; this is the same rule for those that do not.)
"""

from collections.abc import Iterable
from dataclasses import dataclass

from llmhostd.domain.ids import ModelName, NodeId
from llmhostd.domain.request import RequestShape
from llmhostd.host.fleet import Fleet, ModelRecord
from llmhostd.memory.host_tier import AskRate


@dataclass(frozen=True, slots=True)
class PrecedencePolicy:
    """Who is loaded first while memory is short."""

    busier: float = 1.2
    """A new instance waits for one of another model that this many times as many people ask for; 0: whoever comes first
    is loaded first."""
    half_life_s: float = 40.0
    """How often a model is asked for: arrivals count half after this long."""
    claim_s: float = 3.0
    """A model comes first for this long after it last found no memory."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """A model found no memory."""

    at_s: float
    nodes: tuple[NodeId, ...]


class Precedence:
    """Remembers who asks how often, and who was short of memory lately."""

    def __init__(self, fleet: Fleet, policy: PrecedencePolicy) -> None:
        self._fleet = fleet
        self._policy = policy
        self._claims: dict[ModelName, _Claim] = {}

    def asked(self, model: ModelRecord, shape: RequestShape) -> None:
        """Count a request, once: who was refused and asks again keeps the time of the first arrival."""
        model.callers = model.callers or AskRate(self._policy.half_life_s)
        if shape.arrived_s > model.callers.last_s:
            model.callers.asked(shape.arrived_s)

    def lacked(self, model: ModelName, nodes: Iterable[NodeId], now: float) -> None:
        """Know that somebody found no memory for a model on these nodes."""
        there = tuple(dict.fromkeys(nodes))
        self._claims = {name: one for name, one in self._claims.items() if now - one.at_s <= self._policy.claim_s}
        if there:
            self._claims[model] = _Claim(now, there)

    def served(self, model: ModelName) -> None:
        """Know that somebody found a place."""
        self._claims.pop(model, None)

    def before(self, model: ModelName, node_id: NodeId, now: float) -> ModelName | None:
        """Find the model that a new instance of this one must wait for on a node; None: none."""
        if not self._policy.busier or not self._claims:
            return None
        enough, first = self._per_s(model, now) * self._policy.busier, None
        for name, claim in self._claims.items():
            if name == model or node_id not in claim.nodes or now - claim.at_s > self._policy.claim_s:
                continue
            per_s = self._per_s(name, now)
            if per_s > enough:
                enough, first = per_s, name
        return first

    def _per_s(self, model: ModelName, now: float) -> float:
        record = self._fleet.models.get(model)
        return record.callers.per_s(now) if record and record.callers else 0.0
