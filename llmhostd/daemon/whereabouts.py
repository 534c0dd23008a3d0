"""Where do the weights of each model lie, in host memory or on the disk?

Estimates of start times need it at the moment of a request, so it is looked up while the prompt becomes tokens; and now
and again for everybody, for whoever only looks. Counting a file's cached pages takes a millisecond or two, in a thread;
of a model that runs it tells nothing.
"""

import asyncio
import time

from llmhostd.daemon.loop import HostLoop
from llmhostd.daemon.models import Models
from llmhostd.domain.events import WeightsLocated
from llmhostd.domain.ids import InstanceId, ModelName, NodeId
from llmhostd.domain.model import ModelState
from llmhostd.domain.reports import InstanceReported, NodeDown, NodeReport
from llmhostd.domain.start import TierBytes
from llmhostd.loader.page_cache import where_weights_lie

_FRESH_S = 0.2
"""What was looked up so lately is still so."""
_EVERY_S = 3.0
"""One model after another is looked at this often."""


class Whereabouts:
    """Looks, and tells the host mind."""

    def __init__(self, models: Models, loop: HostLoop) -> None:
        self._models = models
        self._loop = loop
        self._looked_s: dict[ModelName, float] = {}
        self._told: dict[ModelName, TierBytes] = {}
        self._run: dict[InstanceId, NodeId] = {}
        """Instances whose weights are packed."""

    def heard(self, report: NodeReport | NodeDown) -> None:
        """Follow what runs."""
        if isinstance(report, InstanceReported):
            self._run.pop(report.instance_id, None)
            if report.state is ModelState.RESIDENT:
                self._run[report.instance_id] = report.node_id
        elif isinstance(report, NodeDown):
            self._run = {instance: node for instance, node in self._run.items() if node != report.node_id}

    async def look(self, name: ModelName) -> None:
        """Look where a known model's weights lie, unless that was done just now, and say so if it can be told."""
        if any(instance.startswith(f"{name}@") for instance in self._run):
            return
        if time.monotonic() - self._looked_s.get(name, -_FRESH_S) >= _FRESH_S:
            lies = await self._look(name)
            if lies is not None:
                self._tell(name, lies)

    async def look_often(self) -> None:
        """Look at all models, and then at one after the other, for ever; say what is news."""
        for spec in list(self._models):
            await self.look(spec.name)
        while True:
            await asyncio.sleep(_EVERY_S)
            names = [spec.name for spec in self._models]
            if names:
                longest_ago = min(names, key=lambda name: self._looked_s.get(name, 0.0))
                lies = await self._look(longest_ago)
                if lies is not None and lies != self._told.get(longest_ago):
                    self._tell(longest_ago, lies)

    async def _look(self, name: ModelName) -> TierBytes | None:
        self._looked_s[name] = time.monotonic()
        return await asyncio.to_thread(where_weights_lie, self._models.checkpoint_of(name))

    def _tell(self, name: ModelName, lies: TierBytes) -> None:
        self._told[name] = lies
        self._loop.hear(WeightsLocated(model=name, lies=lies))
