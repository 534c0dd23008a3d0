"""What does the worker know of one instance?"""

from collections.abc import Callable, Sequence
from pathlib import Path

from llmhostd.compute.model_choice import choose
from llmhostd.domain.commands import LoadInstance
from llmhostd.domain.ids import HardwareKey, InstanceId, NodeId, RequestId
from llmhostd.domain.model import ModelState
from llmhostd.domain.node_events import InstanceWeighed, NodeEvent, RowPlan
from llmhostd.domain.profile import Profile
from llmhostd.domain.reports import InstanceReported, LoadStages, RowReport
from llmhostd.engines.frames import LoadFrame, StageFrame, SubmitFrame
from llmhostd.engines.interface import EngineInstance
from llmhostd.engines.runner import Runner
from llmhostd.loader.adapter import AdapterWeights
from llmhostd.loader.fetch import Fetch
from llmhostd.worker.measure import Measurement, MeasurePolicy
from llmhostd.worker.timing import Stopwatch


class Hosted:
    """One instance from its `LoadFrame` to its end. Without a runner while it is built or destroyed."""

    def __init__(self, frame: LoadFrame) -> None:
        self.command: LoadInstance = frame.command
        self.checkpoint = Path(frame.checkpoint)
        self.state = ModelState.LOADING
        self.runner: Runner | None = None
        self.waiting: dict[RequestId, tuple[SubmitFrame | StageFrame, AdapterWeights | None]] = {}
        """Submitted or staged before there was a runner, in order, and what they are computed with."""
        self.measurement: Measurement | None = None
        self.fetch: Fetch | None = None
        """Its weights on their way over the network; None: they are here."""
        self.near = False
        """So much of them has come that it is its turn with the builder."""
        self.called_off = False
        """Its fetch was stopped because it is to be unloaded: its load fails, and nobody is to blame."""
        self.load_s = 0.0
        self.warm_bytes = 0
        self.first_run_s = frame.command.profile.first_run_s if frame.command.profile else 0.0
        """How much longer the first iteration takes than later ones, where that was ever measured."""
        self._first_s: float | None = None
        """What it took, if that was one token."""
        self.reported_s = 0.0
        """When its size was last reported."""
        self.filling = False
        """Its weights are still being read: its iterations can begin, and not end."""
        self.resting = False
        """What there is of it is being destroyed, to be built again."""
        self.broken = ""
        """Why it is to be destroyed although nobody asked for that; the daemon hears so before it is done."""
        self.hopeless = False
        """It broke in a way that loading it again would not mend."""
        self._weighed: InstanceWeighed | None = None
        """What the mind was last told of its size."""

    @property
    def id(self) -> InstanceId:
        """Its name."""
        return self.command.instance_id

    @property
    def running(self) -> Runner:
        """Its runner; the mind asks nothing of an instance that has none."""
        if self.runner is None:
            raise RuntimeError(f"{self.id} is {self.state} and cannot compute")
        return self.runner

    @property
    def packs_first(self) -> bool:
        """Whether its first iteration will be one that only packs its weights, or measures."""
        return self.command.target is ModelState.RESIDENT or self.command.profile is None

    def compiled(self, instance: EngineInstance, *, filling: bool = False) -> Runner:
        """Have a runner, and all weights, or not yet."""
        self.runner = Runner(instance)
        self.filling = filling
        self.warm_bytes = instance.held_bytes()
        return self.runner

    def built(self, took_s: float) -> None:
        """Become warm."""
        self.state, self.filling = ModelState.WARM, False
        self.load_s = took_s

    def take_apart(self, state: ModelState) -> EngineInstance:
        """Give up the engine's instance, to be destroyed or rested."""
        instance = self.running.instance
        self.runner, self.measurement, self._weighed, self.state, self.filling = None, None, None, state, False
        return instance

    def weighed(self) -> list[NodeEvent]:
        """What the engine really holds for it, if the mind knows otherwise."""
        runner = self.runner
        if runner is None:
            return []
        instance = runner.instance
        now = InstanceWeighed(
            instance_id=self.id,
            held_bytes=instance.held_bytes(),
            kv_blocks=instance.kv_blocks,
            shared_blocks=runner.shared_blocks,
        )
        if now == self._weighed:
            return []
        self._weighed = now
        return [now]

    def outgrown(self) -> bool:
        """Whether it holds more than the mind was told, although nothing was done with it."""
        known_bytes = self._weighed.held_bytes if self._weighed else self.warm_bytes
        return self.runner is not None and self.runner.instance.held_bytes() > known_bytes

    def request_left(self) -> list[NodeEvent]:
        """A request is gone; the mind then guesses what it shared, so it is told in any case."""
        self._weighed = None
        return self.weighed()

    def became_resident(self) -> bool:
        """Note that it ran; whether that was the first time."""
        first, self.state = self.state is ModelState.WARM, ModelState.RESIDENT
        return first

    def run(self, rows: Sequence[RowPlan]) -> tuple[RowReport, ...]:
        """One iteration; without rows it only packs weights. Raises EngineError, and whatever an engine raises."""
        if rows:
            return self.running.run(rows)
        self.pack()
        return ()

    def pack(self) -> None:
        """Run once on nothing: that packs the next part of the weights, so whoever comes waits for one. As `run`."""
        self.running.instance.pack()
        took_s = self._one_token_s()
        if self.state is ModelState.WARM:
            self._first_s = took_s

    def _one_token_s(self) -> float:
        return Stopwatch(self.running).seconds([(0, 1)])

    def measuring(self) -> Measurement:
        """The measurement of its profile that is under way, or else a new one. In the pool that it has."""
        if self.measurement is None or self.measurement.complete:
            self.measurement = Measurement(self.running, MeasurePolicy())
        return self.measurement

    def measure(self, hardware_key: HardwareKey, waits: Callable[[], bool]) -> Profile | None:
        """Run a sample of its profile once, which is returned when a stage ends; or pack first. As `run`.

        `waits`: whether somebody waits for the device.
        """
        if self.state is ModelState.WARM or not self.running.instance.settled:
            self.pack()
            self.became_resident()
            return None
        measurement = self.measuring()
        measurement.run(waits)
        if not measurement.stage_ended:
            return None
        if self._first_s is not None:
            self.first_run_s = max(self._first_s - self._one_token_s(), 0.0)
        profile = Profile(
            shape_key=self.command.shape.key,
            hardware_key=hardware_key,
            prefill=measurement.prefill,
            decode=measurement.decode,
            load_s=self.load_s,
            first_run_s=self.first_run_s,
            resident_bytes=self.running.instance.held_bytes(),
            warm_bytes=self.warm_bytes,
            token_step=self.running.instance.token_step,
            token_counts=self.running.instance.token_counts,
            dense=measurement.dense if measurement.complete else (),
            checks=tuple(measurement.checks),
            coarse=not measurement.complete,
        )
        return choose(profile)

    def gone(self, node_id: NodeId) -> InstanceReported:
        """It is as good as gone, and why."""
        return InstanceReported(
            node_id=node_id, instance_id=self.id, state=ModelState.COLD, held_bytes=0, kv_bytes=0, kv_used_bytes=0,
            because=self.broken,
        )  # fmt: skip

    def report(
        self,
        node_id: NodeId,
        now: float,
        *,
        took_s: float = 0.0,
        because: str = "",
        stages: LoadStages | None = None,
        first_run_s: float = 0.0,
    ) -> InstanceReported:
        """Its state and size now."""
        self.reported_s = now
        runner = self.runner
        return InstanceReported(
            node_id=node_id,
            instance_id=self.id,
            state=self.state,
            held_bytes=runner.instance.held_bytes() if runner else 0,
            kv_bytes=runner.kv_bytes if runner else 0,
            kv_used_bytes=runner.kv_used_bytes if runner else 0,
            took_s=took_s,
            because=because,
            block_tokens=runner.instance.block_tokens if runner else 0,
            stages=stages,
            first_run_s=first_run_s,
        )
