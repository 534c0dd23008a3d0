"""Which instances and requests are on this node, and how do they come and go?"""

import threading
import time
from collections.abc import Sequence

from llmhostd.domain.commands import CancelRequest, LoadInstance, RecallRequest
from llmhostd.domain.errors import CallerError
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import InstanceId, RequestId
from llmhostd.domain.model import ModelState
from llmhostd.domain.node_events import (
    InstanceBroken,
    InstanceEmptied,
    InstanceGone,
    InstanceLoaded,
    NodeEvent,
    PrefixMatched,
    WeightsRead,
)
from llmhostd.domain.reports import LoadFailed, LoadStages, RequestFailed, RequestReturned, RowReport
from llmhostd.engines.frames import LoadFrame, StageFrame, SubmitFrame
from llmhostd.engines.interface import LoadOptions
from llmhostd.engines.runner import PlanError
from llmhostd.loader.adapter import AdapterWeights
from llmhostd.loader.lease import hear_of_copies
from llmhostd.worker.adapters import Adapters
from llmhostd.worker.arrivals import Arrivals
from llmhostd.worker.budget import Budget
from llmhostd.worker.hosted import Hosted
from llmhostd.worker.link import Link
from llmhostd.worker.loads import Builder, Built, Compiled, Damaged, Destroyed, MoreRead, Outcome


class Instances:
    """Every method that returns events returns what the mind must hear of it."""

    def __init__(
        self, spec: NodeSpec, builder: Builder, link: Link, budget: Budget, adapters: Adapters, arrivals: Arrivals
    ) -> None:
        self._spec = spec
        self._arrivals = arrivals
        self._budget = budget
        self._adapters = adapters
        self._builder = builder
        self._link = link
        self._hosted: dict[InstanceId, Hosted] = {}
        self._where: dict[RequestId, Hosted] = {}
        self._copied = threading.Event()
        hear_of_copies(self._hear_of_copy)

    def __getitem__(self, instance_id: InstanceId) -> Hosted:
        """One that is here."""
        return self._hosted[instance_id]

    def expect(self, frame: LoadFrame) -> LoadInstance:
        """Keep what is needed when the mind lets the load begin; returns what the mind is to hear."""
        hosted = self._hosted.setdefault(frame.command.instance_id, Hosted(frame))
        return self._arrivals.expect(hosted)

    def arrived(self) -> Sequence[NodeEvent]:
        """Follow weights that come over the network."""
        return self._arrivals.look(self._hosted.values())

    def copied(self) -> Sequence[NodeEvent]:
        """Weigh, and report, those who have a copy by now of files that somebody wrote to."""
        if not self._copied.is_set():
            return ()
        self._copied.clear()
        grown = [one for one in self._hosted.values() if one.outgrown()]
        for one in grown:
            self.report(one, because="somebody wrote to its files: it goes on with a copy of what was loaded")
        return [event for one in grown for event in one.weighed()]

    def begin_load(self, hosted: Hosted) -> None:
        """Build it in the background."""
        options, pack = self._options(hosted), hosted.packs_first
        self._builder.load(hosted.id, hosted.checkpoint, options, pack=pack, fetch=hosted.fetch)

    def begin_rest(self, hosted: Hosted) -> None:
        """Destroy it in the background, to be built again."""
        hosted.resting = True
        self._builder.destroy(hosted.take_apart(ModelState.LOADING), hosted.id)

    def begin_unload(self, hosted: Hosted) -> Sequence[NodeEvent]:
        """Destroy it in the background; one of which there is nothing is gone at once."""
        if hosted.broken:
            self._tell_broken(hosted)
        if hosted.runner is not None:
            self._builder.destroy(hosted.take_apart(ModelState.UNLOADING), hosted.id)
            return ()
        hosted.state = ModelState.UNLOADING
        return self._gone(hosted, 0.0, "")

    def call_off(self, instance_id: InstanceId) -> None:
        """Stop fetching for an instance that is to be unloaded and nobody waits for: its build ends with that."""
        hosted = self._hosted.get(instance_id)
        if hosted is not None and hosted.fetch is not None and not hosted.waiting and not hosted.fetch.over:
            hosted.called_off = True
            hosted.fetch.stop(f"{hosted.id} is to be unloaded")

    def abandon_load(self, hosted: Hosted, because: str) -> Sequence[NodeEvent]:
        """Say that one of which there is nothing cannot be loaded."""
        return self._gone(hosted, 0.0, because, lacks_memory=True)

    def conclude(self, outcome: Outcome) -> Sequence[NodeEvent]:
        """Take a load that came further, or a removal that ended, in the background.

        What was lost while it filled may be gone when its load ends.
        """
        hosted = self._hosted.get(outcome.instance_id)
        match outcome:
            case _ if hosted is None:
                return ()
            case Destroyed():
                return [*self._budget.lost(outcome.left_bytes, hosted.id), *self._destroyed(hosted, outcome)]
            case _ if hosted.broken:
                return ()
            case Compiled():
                hosted.compiled(outcome.instance, filling=True)
                return self._loaded(hosted)
            case MoreRead():
                return [WeightsRead(instance_id=hosted.id, all_read=False)]
            case Damaged():
                return self.give_up(hosted, outcome.error, hopeless=not hosted.called_off)
            case Built():
                return self._built(hosted, outcome)

    def give_up(self, hosted: Hosted, error: str, *, hopeless: bool = True) -> Sequence[NodeEvent]:
        """Let the mind send an instance away that nobody can use any longer. `hopeless`: another would be no better."""
        hosted.broken, hosted.hopeless = error, hopeless
        return [InstanceBroken(instance_id=hosted.id, because=error)]

    def waits_for_adapter(self, frame: SubmitFrame | StageFrame) -> bool:
        """Whether a request is heard of again only once its adapter is open."""
        hosted = self._hosted.get(frame.command.instance_id)
        return hosted is not None and self._adapters.waits(frame, hosted.command.shape.architecture)

    def withdrawn(self, command: CancelRequest | RecallRequest) -> bool:
        """Let a request go that waits for its adapter, of which the mind has not heard; whether it was one."""
        left = self._adapters.leaves(command.request_id)
        if left is None:
            return False
        if isinstance(command, RecallRequest):
            because, node_id, staged = command.because, self._spec.id, isinstance(left, StageFrame)
            returned = RequestReturned(node_id=node_id, request_id=command.request_id, because=because, staged=staged)
            self._link.send(returned)
        return True

    def without_adapter(self, frame: SubmitFrame | StageFrame, error: str) -> Sequence[NodeEvent]:
        """Refuse a request whose adapter cannot be read; one that is only staged stays where it is."""
        request_id = frame.command.request.id
        if isinstance(frame, SubmitFrame):
            return self.refuse(request_id, error)
        self._link.send(RequestReturned(node_id=self._spec.id, request_id=request_id, because=error, staged=True))
        return ()

    def submit(self, frame: SubmitFrame | StageFrame) -> Sequence[NodeEvent]:
        """Give a request, or what is staged of one, to its instance's runner, or let it wait for one."""
        if isinstance(frame, StageFrame) and frame.command.known_tokens:
            return self._next_round(frame)
        hosted = self._hosted.get(frame.command.instance_id)
        if hosted is None or hosted.broken:
            # The instance went while the command was on its way; the daemon has heard so.
            return ()
        self._where[frame.command.request.id] = hosted
        weights = self._adapters.of(frame)
        if hosted.runner is None:
            hosted.waiting[frame.command.request.id] = frame, weights
            return ()
        return self._enter(hosted, frame, weights)

    def forget(self, request_id: RequestId) -> Hosted | None:
        """Free what a request holds; where that was. None: what was on a lost instance went with it."""
        hosted = self._where.pop(request_id, None)
        if hosted is not None and hosted.waiting.pop(request_id, None) is None:
            hosted.running.drop(request_id)
        return hosted

    def finished(self, rows: Sequence[RowReport]) -> bool:
        """Let go of the requests that these rows finished; whether there was one."""
        ended = [row.request_id for row in rows if row.finish is not None]
        for request_id in ended:
            del self._where[request_id]
        return bool(ended)

    def refuse(self, request_id: RequestId, error: str) -> Sequence[NodeEvent]:
        """Tell the daemon that nobody should try this one; the mind lets go of it as if it were cancelled."""
        node_id = self._spec.id
        self._link.send(RequestFailed(node_id=node_id, request_id=request_id, error=error))
        return [CancelRequest(node_id=node_id, request_id=request_id, because=error)]

    def report(
        self,
        hosted: Hosted,
        *,
        took_s: float = 0.0,
        because: str = "",
        stages: LoadStages | None = None,
        first_run_s: float = 0.0,
    ) -> None:
        """Tell the daemon the state and size of an instance."""
        now = time.monotonic()
        self._link.send(
            hosted.report(self._spec.id, now, took_s=took_s, because=because, stages=stages, first_run_s=first_run_s)
        )

    def _hear_of_copy(self) -> None:
        """From another thread."""
        self._copied.set()
        self._link.ring()

    def _built(self, hosted: Hosted, outcome: Built) -> Sequence[NodeEvent]:
        filled = hosted.filling
        if not filled:
            hosted.compiled(outcome.instance)
        hosted.built(outcome.took_s)
        stages, before_s = self._arrivals.over(hosted, outcome.instance.stages, outcome.took_s)
        self.report(hosted, took_s=before_s + outcome.took_s, stages=stages)
        return [WeightsRead(instance_id=hosted.id, all_read=True)] if filled else self._loaded(hosted)

    def _loaded(self, hosted: Hosted) -> Sequence[NodeEvent]:
        """Let the mind know what is there now, and who waited for it."""
        instance = hosted.running.instance
        events: list[NodeEvent] = [
            InstanceLoaded(
                instance_id=hosted.id,
                held_bytes=hosted.warm_bytes,
                kv_bytes_per_block=instance.kv_bytes_per_block,
                block_tokens=instance.block_tokens,
                filling=hosted.filling,
            )
        ]
        waiting = list(hosted.waiting.values())
        hosted.waiting.clear()
        for frame, weights in waiting:
            events += self._enter(hosted, frame, weights)
        return events

    def _next_round(self, frame: StageFrame) -> Sequence[NodeEvent]:
        """What follows goes where the first round went; nowhere, if that was given back, as the daemon hears."""
        hosted = self._where.get(frame.command.request.id)
        if hosted is not None and hosted.runner is not None:
            hosted.runner.stage(frame.command.request.id, frame.tokens)
        return ()

    def _enter(
        self, hosted: Hosted, frame: SubmitFrame | StageFrame, weights: AdapterWeights | None
    ) -> Sequence[NodeEvent]:
        request, running = frame.command.request, hosted.running
        try:
            if isinstance(frame, StageFrame):
                cached = running.stage(request.id, frame.tokens, weights)
            else:
                cached = running.submit(request.id, frame.context, frame.sampling, request.tokens_out, weights)
        except (CallerError, PlanError) as error:
            del self._where[request.id]
            return self.refuse(request.id, str(error))
        if not cached:
            return ()
        return [PrefixMatched(request_id=request.id, cached_tokens=cached), *hosted.weighed()]

    def _destroyed(self, hosted: Hosted, outcome: Destroyed) -> Sequence[NodeEvent]:
        if not hosted.resting:
            return self._gone(hosted, outcome.took_s, outcome.error)
        hosted.resting = False
        self.report(hosted, took_s=outcome.took_s, because="destroyed to rest; it is built again when nobody waits")
        return [InstanceEmptied(instance_id=hosted.id)]

    def _gone(self, hosted: Hosted, took_s: float, error: str, *, lacks_memory: bool = False) -> Sequence[NodeEvent]:
        del self._hosted[hosted.id]
        self._forget_requests_of(hosted)
        if hosted.fetch is not None:
            hosted.fetch.stop(f"{hosted.id} was unloaded")
        if hosted.broken:
            return [InstanceGone(instance_id=hosted.id)]  # the daemon has heard of it when it broke
        if hosted.state is ModelState.UNLOADING or hosted.called_off:
            hosted.state = ModelState.COLD
            self.report(hosted, took_s=took_s)
        else:
            failed = LoadFailed(node_id=self._spec.id, instance_id=hosted.id, error=error, lacks_memory=lacks_memory)
            self._link.send(failed)
        return [InstanceGone(instance_id=hosted.id)]

    def _tell_broken(self, hosted: Hosted) -> None:
        """Say at once that it is gone: whoever waits for it needs another place. Its bytes stay in the node's books."""
        self._forget_requests_of(hosted)
        if hosted.hopeless:
            self._link.send(LoadFailed(node_id=self._spec.id, instance_id=hosted.id, error=hosted.broken))
        else:
            self._link.send(hosted.gone(self._spec.id))

    def _forget_requests_of(self, hosted: Hosted) -> None:
        self._where = {request_id: each for request_id, each in self._where.items() if each is not hosted}

    def _options(self, hosted: Hosted) -> LoadOptions:
        shape = hosted.command.shape
        threads = self._spec.compute_threads
        return LoadOptions(
            compute=shape.compute,
            kv=shape.kv,
            threads=threads,
            adapters=shape.adapters,
            early=not hosted.packs_first,
        )
