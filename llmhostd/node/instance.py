"""What does a node know of one instance, beside its timing?"""

from collections.abc import Mapping
from dataclasses import dataclass

from llmhostd.compute.adapter_turns import room_of
from llmhostd.compute.estimator import Estimator, ProfiledEstimator, RoughEstimator
from llmhostd.compute.workload import InstanceLoad, RequestLoad
from llmhostd.domain.commands import LoadInstance
from llmhostd.domain.ids import InstanceId, ModelName, RequestId
from llmhostd.domain.model import ModelShape, ModelState
from llmhostd.domain.node_events import InstanceLoaded
from llmhostd.memory import unmeasured
from llmhostd.node.states import COMPUTES, PRESENT, Phase, Trigger, moved

NOT_LOADED_S = float("inf")
"""`ready_at_s` of what cannot be given iterations: it is not loaded, or was never measured."""


@dataclass(slots=True)
class NodeInstance:
    """One instance on its node. Bytes, KV blocks, seconds."""

    id: InstanceId
    model: ModelName
    shape: ModelShape
    target: ModelState
    load: InstanceLoad
    because: str
    """Why it is to be loaded."""
    warm_bytes: int
    """What it holds once it is compiled: as measured before, or else a guess, until it was loaded here."""
    estimator: ProfiledEstimator | None = None
    """None: its shape was never measured here."""
    told: tuple[float, float] = (1.0, 1.0)
    """The corrections that the host knows of."""
    measuring: bool = False
    """Samples of its profile remain to be run."""
    asked: bool = False
    """Somebody asked for them."""
    phase: Phase = Phase.QUEUED
    emptied: bool = False
    """QUEUED because a rest destroyed it."""
    arriving: bool = False
    """Its weights come over a network; nobody waits for that but its own requests."""
    held_bytes: int = 0
    """Beside KV, as the engine says; as a profile says between its first run and the next time that it is weighed."""
    block_bytes: int = 0
    kv_blocks: int = 0
    """Blocks that its pool has."""
    kv_target: int = 0
    """Blocks that its pool was promised: another number while a resize is under way or waits."""
    resizing: bool = False
    """The engine resizes its pool now."""
    blocked: bool = False
    """It computes nothing: its pool is being resized, or waits for that."""
    lacks_weights: bool = False
    """What has begun on it cannot go on before more weights are there."""
    shared_blocks: int = 0
    """KV blocks that the tables of its requests name beyond once: prefixes that several have in common."""
    kv_ceiling: int | None = None
    """The size at which a growth failed, until memory comes free: no use to try again."""
    kv_stuck: bool = False
    """Its pool did not shrink when asked to, and its requests are the same still."""
    rest_because: str | None = None
    """It is to rest as soon as it is idle, and why."""
    unload_because: str | None = None
    """It is to go as soon as it is idle, and why."""

    @classmethod
    def ordered(cls, command: LoadInstance, estimator: ProfiledEstimator | None, block_tokens: int) -> "NodeInstance":
        """Make the record of an instance that is to be loaded."""
        rough: Estimator = estimator or RoughEstimator(command.shape.weight_bytes)
        room = room_of(command.shape)
        load = InstanceLoad(command.instance_id, rough, NOT_LOADED_S, block_tokens=block_tokens, room=room)
        warm_bytes = command.profile.warm_bytes if command.profile else unmeasured.warm_bytes(command.shape)
        one = cls(command.instance_id, command.model, command.shape, command.target, load, command.because, warm_bytes)
        one.know(estimator)
        one.measuring, one.arriving = not one.measured, command.arriving
        return one

    def know(self, estimator: ProfiledEstimator | None) -> None:
        """Plan with a profile, measured or estimated, which the host has too."""
        self.estimator = estimator
        if estimator is not None:
            self.load.know(estimator)
            self.told = estimator.corrections
        self.show_ready()

    def excuse(self, now: float) -> None:
        """Forgive those who waited until it could be planned for, as the host does."""
        for request in self.load.requests.values():
            if not request.tokens_out:
                request.shape = request.shape.excused_until(now)

    @property
    def measured(self) -> bool:
        """Whether its shape was ever measured here; an estimate is enough to serve with, until it is."""
        return self.estimator is not None and self.estimator.measured

    @property
    def block_tokens(self) -> int:
        """Tokens per KV block: as the node's description has it, and once it was loaded, as its engine has it."""
        return self.load.block_tokens

    @property
    def computes(self) -> bool:
        """Whether all of it computes."""
        return self.phase in COMPUTES

    @property
    def present(self) -> bool:
        """Whether it has a pool and may be given iterations."""
        return self.phase in PRESENT

    @property
    def ready(self) -> bool:
        """Whether it may be given one now."""
        return self.present and self.estimator is not None and not self.blocked and not self.lacks_weights

    @property
    def idle(self) -> bool:
        """Whether no request is on it."""
        return not self.load.requests

    @property
    def waited_for(self) -> bool:
        """Whether somebody waits for one of its requests."""
        return any(request.latency_sensitive for request in self.load.requests.values())

    @property
    def resident_bytes(self) -> int:
        """What it holds beside KV after its first iteration."""
        if self.estimator is not None:
            return self.estimator.profile.resident_bytes
        if self.phase is Phase.RESIDENT:
            return self.held_bytes
        return unmeasured.resident_bytes(self.shape)

    def move(self, trigger: Trigger) -> bool:
        """Go on in the table of states; whether that changed anything."""
        phase = moved(self.phase, trigger)
        if phase is self.phase:
            return False
        packed_bytes = self.resident_bytes
        self.phase = phase
        if self.phase is Phase.RESIDENT:
            self.load.first_run_s = 0.0
            self.held_bytes = max(self.held_bytes, packed_bytes)
        if self.phase is not Phase.FILLING:
            self.lacks_weights = False
        self.show_ready()
        return True

    def show_ready(self) -> None:
        """Let whoever plans iterations see whether it may be given any."""
        self.load.ready_at_s = 0.0 if self.ready else NOT_LOADED_S

    def loaded(self, event: InstanceLoaded) -> None:
        """Be warm, or about to be, without a pool."""
        self.move(Trigger.COMPILED if event.filling else Trigger.LOADED)
        self.emptied = False
        self.load.settle()
        self.held_bytes = self.warm_bytes = event.held_bytes
        self.block_bytes, self.load.block_tokens = event.kv_bytes_per_block, event.block_tokens
        self.load.first_run_s = self.estimator.profile.first_run_s if self.estimator is not None else 0.0

    def paused(self) -> None:
        """Wait for more weights."""
        self.lacks_weights = True
        self.show_ready()

    def fuller(self, *, all_read: bool) -> None:
        """Go on with the weights that are there now."""
        self.lacks_weights = False
        if all_read:
            self.move(Trigger.LOADED)
        self.show_ready()

    def emptied_out(self) -> None:
        """Hold nothing any more, and be built again."""
        self.move(Trigger.EMPTIED)
        self.load.room = room_of(self.shape)
        self.emptied, self.because = True, "it was destroyed to rest"
        self.held_bytes = self.kv_blocks = self.kv_target = self.shared_blocks = 0

    def left(self, request: RequestLoad) -> None:
        """A request left, and its table with it. Blocks that it shared may now be others' alone: count them so."""
        self.shared_blocks = max(0, self.shared_blocks - -(-request.computed_tokens // self.block_tokens))
        self.kv_ceiling, self.kv_stuck = None, False

    def blocks_with(self, planned: Mapping[RequestId, int]) -> int:
        """KV blocks that its requests hold once these tokens are computed too; a shared prefix counts once."""
        size = self.block_tokens
        tables = sum(
            -(-(request.computed_tokens + planned.get(key, 0)) // size) for key, request in self.load.requests.items()
        )
        return max(tables - self.shared_blocks, 0)
