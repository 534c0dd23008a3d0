"""What comes up from workers, and what of it must be remembered?"""

import asyncio
import logging
import time

from llmhostd.daemon.inquest import Inquest
from llmhostd.daemon.loop import HostLoop
from llmhostd.daemon.measurements import Measurements
from llmhostd.daemon.mind import Mind
from llmhostd.daemon.records import Records
from llmhostd.daemon.whereabouts import Whereabouts
from llmhostd.domain.model import ModelState
from llmhostd.domain.reports import (
    InstanceReported,
    NodeDown,
    NodeReport,
    NodeUp,
    ProfileMeasured,
    ProfileProgressed,
)
from llmhostd.host.openness import why_closed

log = logging.getLogger(__name__)


class Reports:
    """Hears workers for the host loop."""

    def __init__(
        self,
        mind: Mind,
        loop: HostLoop,
        records: Records,
        measurements: Measurements,
        whereabouts: Whereabouts,
        inquest: Inquest,
    ) -> None:
        self._inquest = inquest
        self._whereabouts = whereabouts
        self._mind = mind
        self._loop = loop
        self._records = records
        self._measurements = measurements
        self.open = asyncio.Event()
        """Set once a node is up that may be given something; if all are drained, once any is up."""

    def hear(self, report: NodeReport | NodeDown) -> None:
        """Hear one. An error of ours must not close the wire to a worker that did nothing wrong: it is logged."""
        if isinstance(report, NodeDown):
            report = self._inquest.cause(report, self._mind.snapshot(time.monotonic()).instances)
        try:
            self._loop.hear(report)
        except Exception:
            log.exception("unexpected error while hearing %s", type(report).__name__)
        self._whereabouts.heard(report)
        if isinstance(report, InstanceReported):
            self._note_files(report)
        if isinstance(report, ProfileMeasured) and report.profile.measured:
            self._measurements.keep(report.profile)
            self._records.keep_profile(report.profile)
        elif isinstance(report, ProfileProgressed) and report.done >= report.total:
            self._measured(report)
        elif isinstance(report, NodeUp):
            self._open()
            for caveat in report.caveats:
                log.warning("node %s: %s", report.node_id, caveat)

    def _open(self) -> None:
        nodes = self._mind.snapshot(time.monotonic()).nodes
        if not why_closed(nodes) or all(node.draining for node in nodes):
            self.open.set()

    def _note_files(self, report: InstanceReported) -> None:
        if report.state is ModelState.COLD:
            self._inquest.gone(report.instance_id)
        elif report.state is ModelState.WARM and report.stages is not None:
            for one in self._mind.snapshot(time.monotonic()).instances:
                if one.id == report.instance_id:
                    self._inquest.loaded(one)

    def _measured(self, report: ProfileProgressed) -> None:
        for one in self._mind.snapshot(time.monotonic()).instances:
            if one.id == report.instance_id:
                self._measurements.count(one.model)
