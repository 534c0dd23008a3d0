"""What goes wrong in a simulation, and when?"""

from llmhostd.domain.words import Word
from llmhostd.simulator.chance import Chance, Purpose


class Faults(Word):
    """How often. The default is a box where nothing goes wrong."""

    death_every_s: float = 0.0
    """A worker dies this often, on average; 0: never."""
    restart_s: float = 0.8
    """A dead worker is back after this long."""
    failed_load_share: float = 0.0
    """Share of loads that fail."""
    slow_iteration_share: float = 0.0
    """Share of iterations that take longer than they should."""
    slow_iteration_factor: float = 8.0
    leaver_share: float = 0.0
    """Share of callers who leave before they have their answer."""
    leaver_patience_s: float = 3.0
    """They leave within this time, all moments alike."""


class Misfortune:
    """Draws the faults, each kind from its own stream."""

    def __init__(self, faults: Faults, seed: int) -> None:
        self.faults = faults
        self._slow = Chance(seed, Purpose.SLOW_ITERATIONS)
        self._failed = Chance(seed, Purpose.FAILED_LOADS)
        self._deaths = Chance(seed, Purpose.DEATHS)
        self._leavers = Chance(seed, Purpose.LEAVERS)

    def slowdown(self) -> float:
        """How many times longer the next iteration takes."""
        return self.faults.slow_iteration_factor if self._slow.happens(self.faults.slow_iteration_share) else 1.0

    def load_fails(self) -> bool:
        """Whether the next load does."""
        return self._failed.happens(self.faults.failed_load_share)

    def next_death_s(self, now: float) -> float | None:
        """When a worker that starts now dies: at 0.5 to 1.5 times the average, so that none lives forever."""
        every_s = self.faults.death_every_s
        return now + every_s * (0.5 + self._deaths.uniform()) if every_s else None

    def leaves_after_s(self) -> float | None:
        """How long the next caller waits; None: to the end."""
        leaves = self._leavers.happens(self.faults.leaver_share)
        return self._leavers.uniform() * self.faults.leaver_patience_s if leaves else None
