"""What does a node know of one instance, beside its timing?"""

from collections.abc import Mapping
from dataclasses import dataclass

from llmhostd.compute.estimator import Estimator, ProfiledEstimator, RoughEstimator
from llmhostd.compute.workload import InstanceLoad
from llmhostd.domain.commands import LoadInstance
from llmhostd.domain.ids import InstanceId, RequestId
from llmhostd.domain.model import ModelShape, ModelState
from llmhostd.node.states import COMPUTES, Phase, Trigger, moved

NOT_LOADED_S = float("inf")
"""`ready_at_s` of what cannot be given iterations: it is not loaded, or was never measured."""
UNMEASURED_OVERHEAD = 1.25
"""What a resident instance is taken to hold before anybody measured it: its checkpoint's bytes times this."""


@dataclass(slots=True)
class NodeInstance:
    """One instance on its node. Bytes, KV blocks, seconds."""

    id: InstanceId
    shape: ModelShape
    target: ModelState
    load: InstanceLoad
    because: str
    """Why it was ordered."""
    estimator: ProfiledEstimator | None = None
    """None: its shape was never measured here."""
    told: tuple[float, float] = (1.0, 1.0)
    """The corrections that the host knows of."""
    measuring: bool = False
    """Samples of its profile remain to be run."""
    phase: Phase = Phase.QUEUED
    held_bytes: int = 0
    """Beside KV, as the engine says."""
    block_bytes: int = 0
    block_tokens: int = 32
    kv_blocks: int = 0
    kv_ceiling: int | None = None
    """The size at which a growth failed, until memory comes free: no use to try again."""
    kv_stuck: bool = False
    """Its pool did not shrink when asked to."""
    rest_because: str | None = None
    """It is to rest as soon as it is idle, and why."""
    unload_because: str | None = None
    """It is to go as soon as it is idle, and why."""

    @classmethod
    def ordered(cls, command: LoadInstance, estimator: ProfiledEstimator | None) -> "NodeInstance":
        """Make the record of an instance that is to be loaded."""
        rough: Estimator = estimator or RoughEstimator(command.shape.weight_bytes)
        load = InstanceLoad(command.instance_id, rough, NOT_LOADED_S)
        one = cls(command.instance_id, command.shape, command.target, load, command.because)
        one.know(estimator)
        one.measuring = estimator is None
        return one

    def know(self, estimator: ProfiledEstimator | None) -> None:
        """Plan with a measured profile, which the host has too."""
        self.estimator = estimator
        if estimator is not None:
            self.load.estimator = estimator
            self.told = estimator.corrections

    @property
    def computes(self) -> bool:
        """Whether it may be given iterations."""
        return self.phase in COMPUTES

    @property
    def idle(self) -> bool:
        """Whether no request is on it."""
        return not self.load.requests

    @property
    def kv_bytes(self) -> int:
        """What its KV pool holds."""
        return self.kv_blocks * self.block_bytes

    @property
    def weights_bytes(self) -> int:
        """What it holds beside KV, or is about to once it has run."""
        if self.phase is not Phase.RESIDENT:
            return self.held_bytes
        return max(self.held_bytes, self.resident_bytes)

    @property
    def resident_bytes(self) -> int:
        """What it holds beside KV after its first iteration."""
        if self.estimator is not None:
            return self.estimator.profile.resident_bytes
        return int(self.shape.weight_bytes * UNMEASURED_OVERHEAD)

    def move(self, trigger: Trigger) -> None:
        """Go on in the table of states."""
        self.phase = moved(self.phase, trigger)
        if self.phase is Phase.RESIDENT:
            self.load.first_run_s = 0.0
        if not self.computes:
            self.load.ready_at_s = NOT_LOADED_S

    def blocks_with(self, planned: Mapping[RequestId, int]) -> int:
        """KV blocks that its requests hold once these tokens are computed too; a shared prefix counts for each."""
        size = self.block_tokens
        return sum(
            -(-(request.computed_tokens + planned.get(key, 0)) // size) for key, request in self.load.requests.items()
        )
