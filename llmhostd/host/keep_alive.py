"""How long is kept what nobody uses? The longer, the dearer it would be to have it again.

SLINFER keeps every instance for a second (§IX-A): a reload is cheap there, and memory always contested. Here whoever
asks for memory gets it from the idle at once (`Budget.who_gives_way`), and what nobody asks for costs little; so the
idle are kept for a multiple of what it would take to have them again, within bounds.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeepAlivePolicy:
    """How long idle instances are kept while nobody else needs their memory."""

    per_reload: float = 600.0
    """What is idle is kept this many times as long as it would take to have it again: packing its weights for a
    resident instance, which is sent back to warm; loading it as well for a warm one, which is unloaded."""
    least_s: float = 30.0
    """Nothing is given up sooner."""
    most_s: float = 3600.0
    """Nothing is kept longer."""
    keep_alive_s: float = 0.0
    """A fixed time instead, after which an idle instance is unloaded, whatever it would cost to have it again; 1 is
    SLINFER's. 0: as above."""

    spare_gpu: float = 1.0
    """On a GPU that serves nobody, the idle are kept for this share of that time: the less, the sooner a whole GPU is
    free. Beside others who are served, they keep no GPU that is not kept anyway."""

    def resident_s(self, pack_s: float) -> float:
        """Return how long a resident instance stays resident. `pack_s`: what packing its weights again takes."""
        return self.keep_alive_s or self._bounded_s(pack_s)

    def warm_s(self, again_s: float) -> float:
        """Return how long an idle instance is kept at all. `again_s`: what loading it and packing its weights takes."""
        return self.keep_alive_s or self._bounded_s(again_s)

    def _bounded_s(self, reload_s: float) -> float:
        return min(max(reload_s * self.per_reload, self.least_s), self.most_s)
