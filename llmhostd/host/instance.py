"""What does the host know of one instance, and how may its state move?"""

from dataclasses import dataclass, field, replace

from llmhostd.checkpoints.load_plan import LoadPlan
from llmhostd.compute.workload import InstanceLoad, RequestLoad
from llmhostd.domain.ids import HardwareKey, InstanceId, ModelName, NodeId, RequestId, ShapeKey
from llmhostd.domain.model import ModelShape, ModelState
from llmhostd.domain.reports import WeightsFetched
from llmhostd.domain.start import StartSeen, TierBytes

MOVES: dict[ModelState, tuple[ModelState, ...]] = {
    ModelState.COLD: (ModelState.LOADING,),
    ModelState.LOADING: (ModelState.WARM, ModelState.RESIDENT, ModelState.COLD),
    ModelState.WARM: (ModelState.RESIDENT, ModelState.UNLOADING),
    ModelState.RESIDENT: (ModelState.LOADING, ModelState.UNLOADING),
    ModelState.UNLOADING: (ModelState.COLD,),
}
"""How an instance may move. COLD is both ends of its life: it waits for memory, or it is gone. LOADING -> COLD is a
failed load; RESIDENT -> LOADING is a rest (destroyed and recompiled)."""


@dataclass(slots=True)
class Start:
    """How an instance comes, or came, to its first token: what was foretold, and what is known by now."""

    ordered_s: float
    plan: LoadPlan
    lies: TierBytes
    """Where its weights were taken to lie."""
    began_s: float | None = None
    """When its turn came; None: others load before it."""
    far: bool = False
    """Most of its weights are still to come over a network; it stands in nobody's way."""
    near_s: float | None = None
    """What its load was taken to need from when they were near; None: they were here, or are far."""
    fetched: WeightsFetched | None = None
    """How far they are."""
    computed_s: float = 0.0
    """For how long others computed on its node since then."""
    first_s: float = 0.0
    """What its first iteration is taken to need for its own work, by what was asked of it when it was ordered."""
    own_s: float = 0.0
    """The same as its node foretold it when it began."""
    ready_s: float | None = None
    """When it was warm; None: it is not yet."""
    seen: StartSeen | None = None
    """How its load went, while somebody waits for what follows."""
    foretold_s: float = 0.0
    """What `took_s` can be held against: the first iteration is no part of it where nobody waited."""
    took_s: float | None = None
    """The truth; None: it is not over."""

    def wait(self, for_memory_s: float) -> None:
        """Foretell that it must wait for memory first."""
        self.plan = replace(self.plan, queue_s=max(self.plan.queue_s, for_memory_s))


@dataclass(slots=True)
class Instance:
    """A model on a node, from the decision to load it until its memory is free again."""

    id: InstanceId
    model: ModelName
    node_id: NodeId
    shape: ModelShape
    profile_key: tuple[ShapeKey, HardwareKey]
    load: InstanceLoad
    """Its part of the mirror of the node's work; `load.requests` holds all that is assigned to it."""
    last_used_s: float
    state: ModelState = ModelState.COLD
    resting: bool = False
    """LOADING because it was sent back to warm: what it held before is not yet free."""
    granted_bytes: tuple[int, int] = (0, 0)
    """Weights and KV that it may take up on its node; it waits while this is not what it was promised."""
    reported_bytes: int = 0
    """What the node last said it holds beside KV."""
    kv_bytes: int = 0
    kv_used_bytes: int = 0
    kv_room: bool = False
    """Its pool was promised room above its demand, up to the watermark (SLINFER §VII-B)."""
    packs: bool = False
    """Its weights are packed as soon as nobody else computes, before anybody asks for it."""
    start: Start | None = None
    """Its last one; None: it was never ordered."""
    unload_asked: bool = False
    """By an operator, or because its model is gone or changed: unload as soon as it is idle."""
    closed: bool = False
    """It takes nobody new: somebody needs what it has no room for, and would not get it while it is here."""
    arriving: dict[RequestId, RequestLoad] = field(default_factory=dict)
    """Streams that run elsewhere and are to come here (`migration`): their KV is in its demand."""
    measuring: str = ""
    """`34/96` while its profile is measured, until the host has that."""
    taught: bool = False
    """Its node was told what another one measured, and measures it no more; what it said before may still come."""

    @property
    def loaded(self) -> bool:
        """Whether it can run or be sent away; not while it comes or goes."""
        return self.state in (ModelState.WARM, ModelState.RESIDENT)

    @property
    def demanding(self) -> list[RequestLoad]:
        """Whose KV it needs room for."""
        return [*self.load.requests.values(), *self.arriving.values()]

    @property
    def idle(self) -> bool:
        """Whether it is loaded and nothing is assigned to it, nor on its way to it."""
        return self.loaded and not self.load.requests and not self.arriving

    @property
    def fetched_for_nobody(self) -> bool:
        """Whether its weights are still coming over a network and nobody waits for them: that can be stopped."""
        start = self.start if self.state is ModelState.LOADING else None
        coming = start is not None and (start.far or (start.fetched is not None and not start.fetched.all_here))
        return coming and not self.load.requests and not self.arriving

    @property
    def batch(self) -> int:
        """How many latency-sensitive requests are assigned to it, or on their way to it."""
        return sum(request.latency_sensitive for request in self.load.requests.values()) + len(self.arriving)

    @property
    def waited_for(self) -> bool:
        """Whether a latency-sensitive request is assigned to it, or on its way to it."""
        return bool(self.arriving) or any(request.latency_sensitive for request in self.load.requests.values())

    def move(self, state: ModelState) -> bool:
        """Change state along MOVES; says whether it was a change. A report that overtook an order changes nothing."""
        late_news = self.resting and state is ModelState.RESIDENT
        if late_news or state not in MOVES[self.state]:
            return False
        self.state = state
        return True
