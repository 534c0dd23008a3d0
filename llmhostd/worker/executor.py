"""What does an action of the node mind do, and what does the mind hear of it?"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from llmhostd.domain.errors import EngineError
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.node_events import (
    BeginLoad,
    BeginRest,
    BeginUnload,
    DropRequest,
    IterationDone,
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
    RequestReturned,
    RowReport,
)
from llmhostd.engines.crash_note import CrashNote
from llmhostd.worker.hosted import Hosted
from llmhostd.worker.instances import Instances
from llmhostd.worker.link import Link
from llmhostd.worker.loads import explain

_REPORT_EVERY_S = 1.0
"""A busy instance's size is reported this often."""


class Executor:
    """Called by the device loop only, so that one instance computes at a time."""

    def __init__(self, spec: NodeSpec, instances: Instances, link: Link, note: CrashNote) -> None:
        self._spec = spec
        self._instances = instances
        self._link = link
        self._note = note
        self._perform: dict[type[NodeAction], Callable[[Any], Sequence[NodeEvent]]] = {
            RunIteration: self._run_iteration,
            ResizeKv: self._resize_kv,
            RunProfileSample: self._run_profile_sample,
            ReportProfile: self._report_profile,
            BeginLoad: self._begin_load,
            BeginRest: self._begin_rest,
            BeginUnload: self._begin_unload,
            DropRequest: self._drop_request,
            ReturnRequest: self._return_request,
        }

    def perform(self, action: NodeAction) -> Sequence[NodeEvent]:
        """Do it, report it, and return what the mind must hear."""
        return self._perform[type(action)](action)

    def _run_iteration(self, action: RunIteration) -> Sequence[NodeEvent]:
        hosted = self._instances[action.instance_id]
        self._note.computing(hosted.id)
        started_s = time.monotonic()
        try:
            rows = hosted.run(action.rows)
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises, the other instances go on
            return self._iteration_failed(action, hosted, explain(error), time.monotonic() - started_s)
        finally:
            self._note.computing(None)
        duration_s = time.monotonic() - started_s
        self._link.send(
            IterationReported(
                node_id=self._spec.id,
                instance_id=hosted.id,
                started_s=started_s,
                duration_s=duration_s,
                predicted_s=action.predicted_s,
                rows=rows,
                because=action.because,
            )
        )
        self._after(hosted, rows, started_s + duration_s)
        done = tuple(
            RowDone(
                request_id=row.request_id, computed_tokens=one.tokens, new_tokens=len(row.tokens), finish=row.finish
            )
            for row, one in zip(rows, action.rows, strict=True)
        )
        return [
            IterationDone(instance_id=hosted.id, duration_s=duration_s, rows=done),
            *(PrefixMatched(request_id=one, cached_tokens=tokens) for one, tokens in hosted.running.match_again()),
        ]

    def _after(self, hosted: Hosted, rows: Sequence[RowReport], now: float) -> None:
        """Report a size that changed: at once where that matters, else now and then."""
        first, finished = hosted.became_resident(), self._instances.finished(rows)
        if first or finished or now - hosted.reported_s >= _REPORT_EVERY_S:
            self._instances.report(hosted)

    def _iteration_failed(
        self, action: RunIteration, hosted: Hosted, error: str, duration_s: float
    ) -> Sequence[NodeEvent]:
        """Its requests fail; the instance may go on with others, unless it cannot even run on nothing."""
        if not action.rows:
            return self._instances.give_up(hosted, f"its first iteration failed: {error}")
        done = IterationDone(instance_id=hosted.id, duration_s=duration_s, rows=())
        return [done, *self._instances.fail([row.request_id for row in action.rows], error)]

    def _resize_kv(self, action: ResizeKv) -> Sequence[NodeEvent]:
        hosted = self._instances[action.instance_id]
        try:
            hosted.running.resize(action.kv_blocks)
        except EngineError as error:
            self._instances.report(hosted, because=f"its KV keeps its size: {error}")
        else:
            self._instances.report(hosted, because=action.because)
        return [KvResized(instance_id=hosted.id, kv_blocks=hosted.running.instance.kv_blocks)]

    def _report_profile(self, action: ReportProfile) -> Sequence[NodeEvent]:
        self._link.send(ProfileMeasured(node_id=self._spec.id, instance_id=action.instance_id, profile=action.profile))
        return ()

    def _run_profile_sample(self, action: RunProfileSample) -> Sequence[NodeEvent]:
        hosted = self._instances[action.instance_id]
        measurement = hosted.measuring()
        self._note.computing(hosted.id)
        try:
            profile = hosted.measure(self._spec.hardware_key)
        except Exception as error:  # noqa: BLE001 - as above
            return self._instances.give_up(hosted, f"it failed while it was measured: {explain(error)}")
        finally:
            self._note.computing(None)
        node_id, done, total = self._spec.id, measurement.done, measurement.total
        self._link.send(ProfileProgressed(node_id=node_id, instance_id=hosted.id, done=done, total=total))
        if profile is None:
            return ()
        self._instances.report(hosted)
        self._link.send(ProfileMeasured(node_id=node_id, instance_id=hosted.id, profile=profile))
        return [ProfileUpdated(instance_id=hosted.id, profile=profile, complete=measurement.complete)]

    def _begin_load(self, action: BeginLoad) -> Sequence[NodeEvent]:
        self._instances.begin_load(self._instances[action.instance_id])
        return ()

    def _begin_rest(self, action: BeginRest) -> Sequence[NodeEvent]:
        self._instances.begin_rest(self._instances[action.instance_id])
        return ()

    def _begin_unload(self, action: BeginUnload) -> Sequence[NodeEvent]:
        return self._instances.begin_unload(self._instances[action.instance_id])

    def _drop_request(self, action: DropRequest) -> Sequence[NodeEvent]:
        self._instances.forget(action.request_id)
        return ()

    def _return_request(self, action: ReturnRequest) -> Sequence[NodeEvent]:
        """Of those whose instance is gone the daemon has heard already, and may have placed them again."""
        request_id, because = action.request_id, action.because
        if self._instances.forget(request_id):
            self._link.send(RequestReturned(node_id=self._spec.id, request_id=request_id, because=because))
        return ()
