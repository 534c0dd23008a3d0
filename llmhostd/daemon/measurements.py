"""What was measured, and how often since the daemon started?"""

from collections import Counter

from llmhostd.domain.ids import HardwareKey, ModelName, ShapeKey
from llmhostd.domain.profile import Profile


class Measurements:
    """The newest profile of every (model shape, hardware) pair, and the measurements that ended."""

    def __init__(self) -> None:
        self._profiles: dict[tuple[ShapeKey, HardwareKey], Profile] = {}
        self._ended: Counter[ModelName] = Counter()

    def keep(self, profile: Profile) -> None:
        """Replace what was known of that pair."""
        self._profiles[profile.shape_key, profile.hardware_key] = profile

    def count(self, model: ModelName) -> None:
        """Note that a measurement of a model ended."""
        self._ended[model] += 1

    def profiles(self) -> list[Profile]:
        """All of them, in the order in which the pairs were first seen."""
        return list(self._profiles.values())

    def ended(self, model: ModelName) -> int:
        """How many measurements of a model ended."""
        return self._ended[model]
