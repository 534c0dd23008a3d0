"""Which instances and requests are on this node, and how do they come and go?"""

import time
from collections.abc import Sequence

from llmhostd.domain.commands import CancelRequest
from llmhostd.domain.errors import CallerError
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import InstanceId, RequestId
from llmhostd.domain.model import ModelState
from llmhostd.domain.node_events import InstanceGone, InstanceLoaded, NodeEvent, PrefixMatched
from llmhostd.domain.reports import LoadFailed, RequestFailed, RowReport
from llmhostd.engines.frames import LoadFrame, SubmitFrame
from llmhostd.engines.interface import LoadOptions
from llmhostd.engines.runner import Runner
from llmhostd.worker.hosted import Hosted
from llmhostd.worker.link import Link
from llmhostd.worker.loads import Builder, Built, Outcome


class Instances:
    """Every method that returns events returns what the mind must hear of it."""

    def __init__(self, spec: NodeSpec, builder: Builder, link: Link) -> None:
        self._spec = spec
        self._builder = builder
        self._link = link
        self._hosted: dict[InstanceId, Hosted] = {}
        self._where: dict[RequestId, Hosted] = {}

    def __getitem__(self, instance_id: InstanceId) -> Hosted:
        """One that is here."""
        return self._hosted[instance_id]

    def expect(self, frame: LoadFrame) -> None:
        """Keep what is needed when the mind lets the load begin."""
        self._hosted.setdefault(frame.command.instance_id, Hosted(frame))

    def begin_load(self, hosted: Hosted) -> None:
        """Build it in the background."""
        self._builder.load(hosted.id, hosted.checkpoint, self._options(hosted))

    def begin_rest(self, hosted: Hosted) -> None:
        """Destroy it and build it again in the background."""
        instance = hosted.take_apart(ModelState.LOADING)
        self._builder.rest(instance, hosted.id, hosted.checkpoint, self._options(hosted))

    def begin_unload(self, hosted: Hosted) -> Sequence[NodeEvent]:
        """Destroy it in the background; one whose load never began is gone at once."""
        if hosted.runner is not None:
            self._builder.unload(hosted.take_apart(ModelState.UNLOADING), hosted.id)
            return ()
        hosted.state = ModelState.UNLOADING
        return self._gone(hosted, 0.0, "")

    def conclude(self, outcome: Outcome) -> Sequence[NodeEvent]:
        """Take a load, rest or unload that ended in the background."""
        hosted = self._hosted.get(outcome.instance_id)
        if hosted is None:
            # Given up as broken before it was destroyed.
            return ()
        if isinstance(outcome, Built):
            return self._built(hosted, outcome)
        return self._gone(hosted, outcome.took_s, outcome.error)

    def give_up(self, hosted: Hosted, error: str) -> Sequence[NodeEvent]:
        """Destroy an instance that nobody should wait for any longer."""
        self._builder.unload(hosted.take_apart(ModelState.LOADING), hosted.id)
        return self._gone(hosted, 0.0, error)

    def submit(self, frame: SubmitFrame) -> Sequence[NodeEvent]:
        """Give a request to its instance's runner, or let it wait for one."""
        hosted = self._hosted.get(frame.command.instance_id)
        if hosted is None:
            # The instance went while the command was on its way; the daemon has heard so.
            return ()
        self._where[frame.command.request.id] = hosted
        if hosted.runner is None:
            hosted.waiting[frame.command.request.id] = frame
            return ()
        return self._enter(hosted.runner, frame)

    def forget(self, request_id: RequestId) -> bool:
        """Free what a request holds; whether there was anything: what was on a lost instance went with it."""
        hosted = self._where.pop(request_id, None)
        if hosted is None:
            return False
        if hosted.waiting.pop(request_id, None) is None:
            hosted.running.drop(request_id)
        return True

    def finished(self, rows: Sequence[RowReport]) -> bool:
        """Let go of the requests that these rows finished; whether there was one."""
        ended = [row.request_id for row in rows if row.finish is not None]
        for request_id in ended:
            del self._where[request_id]
        return bool(ended)

    def fail(self, request_ids: Sequence[RequestId], error: str) -> Sequence[NodeEvent]:
        """Tell the daemon that nobody should try these again; the mind lets go of them as if they were cancelled."""
        node_id = self._spec.id
        for request_id in request_ids:
            self._link.send(RequestFailed(node_id=node_id, request_id=request_id, error=error))
        return [CancelRequest(node_id=node_id, request_id=request_id, because=error) for request_id in request_ids]

    def report(self, hosted: Hosted, *, took_s: float = 0.0, because: str = "") -> None:
        """Tell the daemon the state and size of an instance."""
        self._link.send(hosted.report(self._spec.id, time.monotonic(), took_s=took_s, because=because))

    def _built(self, hosted: Hosted, outcome: Built) -> Sequence[NodeEvent]:
        runner = hosted.built(outcome.instance, outcome.took_s)
        self.report(hosted, took_s=outcome.took_s)
        events: list[NodeEvent] = [
            InstanceLoaded(
                instance_id=hosted.id,
                held_bytes=hosted.warm_bytes,
                kv_bytes_per_block=runner.instance.kv_bytes_per_block,
                block_tokens=runner.instance.block_tokens,
            )
        ]
        waiting = list(hosted.waiting.values())
        hosted.waiting.clear()
        for frame in waiting:
            events += self._enter(runner, frame)
        return events

    def _enter(self, runner: Runner, frame: SubmitFrame) -> Sequence[NodeEvent]:
        request = frame.command.request
        try:
            cached = runner.submit(request.id, frame.context, frame.sampling, request.tokens_out)
        except CallerError as error:
            del self._where[request.id]
            return self.fail([request.id], str(error))
        return [PrefixMatched(request_id=request.id, cached_tokens=cached)] if cached else ()

    def _gone(self, hosted: Hosted, took_s: float, error: str) -> Sequence[NodeEvent]:
        del self._hosted[hosted.id]
        self._where = {request_id: each for request_id, each in self._where.items() if each is not hosted}
        if hosted.state is ModelState.UNLOADING:
            hosted.state = ModelState.COLD
            self.report(hosted, took_s=took_s)
        else:
            self._link.send(LoadFailed(node_id=self._spec.id, instance_id=hosted.id, error=error))
        return [InstanceGone(instance_id=hosted.id)]

    def _options(self, hosted: Hosted) -> LoadOptions:
        shape = hosted.command.shape
        return LoadOptions(compute=shape.compute, kv=shape.kv, threads=self._spec.compute_threads)
