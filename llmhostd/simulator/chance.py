"""What does chance say? Every purpose has its own stream of the seed, so that one does not disturb another."""

from enum import IntEnum

import numpy as np

_AHEAD = 4096
"""Draws are made this many at a time: one by one they are slow."""


class Purpose(IntEnum):
    """What a stream is for. Beside those of `bench.schedule`."""

    TIERS = 100
    NOISE = 101
    SLOW_ITERATIONS = 102
    FAILED_LOADS = 103
    DEATHS = 104
    LEAVERS = 105
    PROFILES = 106
    START_LOAD = 107
    START_PLACES = 108
    START_NOISE = 109


class Chance:
    """A stream of uniform and of normal draws."""

    def __init__(self, seed: int, purpose: Purpose) -> None:
        self._rng = np.random.default_rng([seed, purpose])
        self._uniform: list[float] = []
        self._normal: list[float] = []

    def uniform(self) -> float:
        """Draw from 0 <= x < 1."""
        if not self._uniform:
            self._uniform = self._rng.random(_AHEAD).tolist()
        return self._uniform.pop()

    def normal(self) -> float:
        """Draw with mean 0 and deviation 1."""
        if not self._normal:
            self._normal = self._rng.standard_normal(_AHEAD).tolist()
        return self._normal.pop()

    def happens(self, probability: float) -> bool:
        """Draw an event; a probability of 0 draws nothing."""
        return probability > 0.0 and self.uniform() < probability
