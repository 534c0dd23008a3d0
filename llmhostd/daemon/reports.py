"""What comes up from workers, and what of it must be remembered?"""

import logging
import time

from llmhostd.daemon.inquest import Inquest
from llmhostd.daemon.loop import HostLoop
from llmhostd.daemon.measurements import Measurements
from llmhostd.daemon.mind import Mind
from llmhostd.daemon.opening import Opening
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
        opening: Opening,
    ) -> None:
        self._opening = opening
        self._inquest = inquest
        self._whereabouts = whereabouts
        self._mind = mind
        self._loop = loop
        self._records = records
        self._measurements = measurements

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
            self._opening.look()
            for caveat in report.caveats:
                log.warning("node %s: %s", report.node_id, caveat)

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
