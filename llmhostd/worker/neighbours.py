"""Does anybody else compute on this device while an instance loads?

The device loop says who computes, the builder who loads; those who read weights ask, chunk by chunk.
"""

import time

from llmhostd.domain.ids import InstanceId

_RECENT_S = 0.05
"""Between two iterations of one who decodes less than this passes."""


class Neighbours:
    """Of one worker. Each attribute has one writer; readers may be a moment late."""

    def __init__(self) -> None:
        self._loading: InstanceId | None = None
        self._computes = False
        self._last_s = -_RECENT_S

    def loads(self, instance_id: InstanceId | None) -> None:
        """Hear from the builder's thread who loads now."""
        self._loading = instance_id

    def begins(self, instance_id: InstanceId) -> None:
        """Hear from the device loop whose iteration begins: that of the one that loads, too (`FillingInstance`)."""
        self._computes = instance_id != self._loading

    def ends(self) -> None:
        """Hear that it ended."""
        if self._computes:
            self._computes, self._last_s = False, time.monotonic()

    def crowd(self) -> bool:
        """Say whether somebody else than the one that loads computes, or did a moment ago."""
        return self._computes or time.monotonic() - self._last_s < _RECENT_S
