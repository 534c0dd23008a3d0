"""Is there a node yet that may be given something, so that the daemon may say that it serves?"""

import asyncio
import time

from llmhostd.daemon.mind import Mind
from llmhostd.host.openness import why_closed


class Opening:
    """Looks whenever that may have changed: a node came up, an operator drained one or gave one back."""

    def __init__(self, mind: Mind) -> None:
        self._mind = mind
        self.open = asyncio.Event()
        """Set once a node is up that may be given something; if all are drained, once any is up. Never unset."""

    def look(self) -> None:
        """See whether it is so now."""
        nodes = self._mind.snapshot(time.monotonic()).nodes
        up = any(node.up for node in nodes)
        if up and (not why_closed(nodes) or all(node.draining for node in nodes)):
            self.open.set()
