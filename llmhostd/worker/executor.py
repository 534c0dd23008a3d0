"""What does an action of the node mind do, and what does the mind hear of it?"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from llmhostd.domain.errors import InstanceLostError, ProcessLostError
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.node_events import (
    AbandonLoad,
    BeginLoad,
    BeginRest,
    BeginUnload,
    CallOffRest,
    DropRequest,
    FailRequest,
    IterationBegun,
    IterationDone,
    IterationFailed,
    KvResized,
    NodeAction,
    NodeEvent,
    PrefixMatched,
    ProfileUpdated,
    ReportProfile,
    ResizeKv,
    ReturnRequest,
    RowDone,
    RunIteration,
    RunProfileSample,
)
from llmhostd.domain.reports import (
    IterationReported,
    ProfileMeasured,
    ProfileProgressed,
    RequestFailed,
    RequestReturned,
    RestCalledOff,
    RowReport,
)
from llmhostd.engines.crash_note import CrashNote
from llmhostd.worker.hosted import Hosted
from llmhostd.worker.instances import Instances
from llmhostd.worker.link import Link
from llmhostd.worker.loads import explain
from llmhostd.worker.neighbours import Neighbours

_REPORT_EVERY_S = 1.0
"""A busy instance's size is reported this often."""


class Executor:
    """Called by the device loop only, so that one instance computes at a time."""

    def __init__(
        self, spec: NodeSpec, instances: Instances, link: Link, note: CrashNote, neighbours: Neighbours
    ) -> None:
        self._spec = spec
        self._instances = instances
        self._link = link
        self._note = note
        self._neighbours = neighbours
        self._perform: dict[type[NodeAction], Callable[[Any], Sequence[NodeEvent]]] = {
            RunIteration: self._run_iteration,
            ResizeKv: self._resize_kv,
            RunProfileSample: self._run_profile_sample,
            ReportProfile: self._report_profile,
            CallOffRest: self._call_off_rest,
            BeginLoad: self._begin_load,
            BeginRest: self._begin_rest,
            BeginUnload: self._begin_unload,
            AbandonLoad: self._abandon_load,
            DropRequest: self._drop_request,
            FailRequest: self._fail_request,
            ReturnRequest: self._return_request,
        }

    def perform(self, action: NodeAction) -> Sequence[NodeEvent]:
        """Do it, report it, and return what the mind must hear."""
        return self._perform[type(action)](action)

    def _run_iteration(self, action: RunIteration) -> Sequence[NodeEvent]:
        hosted = self._instances[action.instance_id]
        self._computing(hosted)
        started_s, settled = time.monotonic(), hosted.running.instance.settled
        rows: tuple[RowReport, ...] = ()
        try:
            if hosted.filling:
                hosted.running.begin(action.rows)
            else:
                rows = hosted.run(action.rows)
        except ProcessLostError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises, the other instances go on
            return self._iteration_failed(action, hosted, error, time.monotonic() - started_s)
        finally:
            self._computing(None)
        duration_s = time.monotonic() - started_s
        if hosted.filling:
            return [IterationBegun(instance_id=hosted.id, duration_s=duration_s), *hosted.weighed()]
        return self._iterated(action, hosted, rows, started_s, duration_s, settled=settled)

    def _computing(self, hosted: Hosted | None) -> None:
        """Let those know who ask who computes."""
        self._note.computing(None if hosted is None else hosted.id)
        if hosted is None:
            self._neighbours.ends()
        else:
            self._neighbours.begins(hosted.id)

    def _iterated(
        self,
        action: RunIteration,
        hosted: Hosted,
        rows: tuple[RowReport, ...],
        started_s: float,
        duration_s: float,
        *,
        settled: bool,
    ) -> Sequence[NodeEvent]:
        self._link.send(
            IterationReported(
                node_id=self._spec.id,
                instance_id=hosted.id,
                started_s=started_s,
                duration_s=duration_s,
                predicted_s=action.predicted_s,
                rows=rows,
                because=action.because,
                settled=settled,
            )
        )
        finished = self._after(hosted, rows, started_s + duration_s, duration_s)
        done = tuple(
            RowDone(
                request_id=row.request_id,
                computed_tokens=0 if row.failed else one.tokens,
                new_tokens=len(row.tokens),
                finish=row.finish,
                failed=row.failed,
            )
            for row, one in zip(rows, action.rows, strict=True)
        )
        return [
            IterationDone(instance_id=hosted.id, duration_s=duration_s, rows=done, settled=settled),
            *(PrefixMatched(request_id=one, cached_tokens=tokens) for one, tokens in hosted.running.match_again()),
            *(hosted.request_left() if finished else hosted.weighed()),
        ]

    def _after(self, hosted: Hosted, rows: Sequence[RowReport], now: float, duration_s: float) -> bool:
        """Report a size that changed: at once where that matters, else now and then. Whether a request finished."""
        first, finished = hosted.became_resident(), self._instances.finished(rows)
        if first or finished or now - hosted.reported_s >= _REPORT_EVERY_S:
            self._instances.report(hosted, first_run_s=duration_s if first else 0.0)
        return finished

    def _iteration_failed(
        self, action: RunIteration, hosted: Hosted, error: Exception, duration_s: float
    ) -> Sequence[NodeEvent]:
        """The instance may go on with others, unless it says that it cannot, or fails even on nothing."""
        because = explain(error)
        if not action.rows:
            return self._instances.give_up(hosted, f"its first iteration failed: {because}")
        failed = IterationFailed(instance_id=hosted.id, duration_s=duration_s, because=because)
        if isinstance(error, InstanceLostError):
            return [failed, *self._instances.give_up(hosted, because, hopeless=False)]
        return [failed, *hosted.weighed()]

    def _resize_kv(self, action: ResizeKv) -> Sequence[NodeEvent]:
        hosted, because = self._instances[action.instance_id], action.because
        started_s = time.monotonic()
        try:
            hosted.running.resize(action.kv_blocks)
        except Exception as error:  # noqa: BLE001 - as above
            because = f"its KV could not be resized: {explain(error)}"
        if not hosted.running.intact:
            return self._instances.give_up(hosted, because)
        self._instances.report(hosted, because=because)
        kv_blocks, took_s = hosted.running.instance.kv_blocks, time.monotonic() - started_s
        return [KvResized(instance_id=hosted.id, kv_blocks=kv_blocks, took_s=took_s), *hosted.weighed()]

    def _report_profile(self, action: ReportProfile) -> Sequence[NodeEvent]:
        self._link.send(ProfileMeasured(node_id=self._spec.id, instance_id=action.instance_id, profile=action.profile))
        return ()

    def _call_off_rest(self, action: CallOffRest) -> Sequence[NodeEvent]:
        because = action.because
        self._link.send(RestCalledOff(node_id=self._spec.id, instance_id=action.instance_id, because=because))
        return ()

    def _run_profile_sample(self, action: RunProfileSample) -> Sequence[NodeEvent]:
        hosted = self._instances[action.instance_id]
        measurement = hosted.measuring()
        self._computing(hosted)
        try:
            profile = hosted.measure(self._spec.hardware_key, self._link.waits)
        except ProcessLostError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            return self._instances.give_up(hosted, f"it failed while it was measured: {explain(error)}")
        finally:
            self._computing(None)
        node_id, done, total = self._spec.id, measurement.done, measurement.total
        self._link.send(ProfileProgressed(node_id=node_id, instance_id=hosted.id, done=done, total=total))
        if profile is None:
            return hosted.weighed()
        self._instances.report(hosted)
        self._link.send(ProfileMeasured(node_id=node_id, instance_id=hosted.id, profile=profile))
        measured = ProfileUpdated(instance_id=hosted.id, profile=profile, complete=measurement.complete)
        return [measured, *hosted.weighed()]

    def _begin_load(self, action: BeginLoad) -> Sequence[NodeEvent]:
        self._instances.begin_load(self._instances[action.instance_id])
        return ()

    def _begin_rest(self, action: BeginRest) -> Sequence[NodeEvent]:
        self._instances.begin_rest(self._instances[action.instance_id])
        return ()

    def _begin_unload(self, action: BeginUnload) -> Sequence[NodeEvent]:
        return self._instances.begin_unload(self._instances[action.instance_id])

    def _abandon_load(self, action: AbandonLoad) -> Sequence[NodeEvent]:
        return self._instances.abandon_load(self._instances[action.instance_id], action.because)

    def _drop_request(self, action: DropRequest) -> Sequence[NodeEvent]:
        hosted = self._instances.forget(action.request_id)
        return hosted.request_left() if hosted else ()

    def _fail_request(self, action: FailRequest) -> Sequence[NodeEvent]:
        failed = RequestFailed(node_id=self._spec.id, request_id=action.request_id, error=action.because)
        return self._give_back(failed)

    def _return_request(self, action: ReturnRequest) -> Sequence[NodeEvent]:
        returned = RequestReturned(
            node_id=self._spec.id, request_id=action.request_id, because=action.because, staged=action.staged
        )
        return self._give_back(returned)

    def _give_back(self, report: RequestFailed | RequestReturned) -> Sequence[NodeEvent]:
        """Of those whose instance is gone the daemon has heard already, and may have placed them again."""
        hosted = self._instances.forget(report.request_id)
        if hosted is None:
            return ()
        self._link.send(report)
        return hosted.request_left()
