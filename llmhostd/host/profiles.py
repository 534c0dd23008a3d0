"""How long do iterations of each shape take on each hardware, and on each node by what was seen there?

What was measured on one node holds for all nodes of its hardware; how far iterations there are from it, each node
learns by itself, and neither host nor other nodes take that for theirs.
"""

from collections.abc import Collection, Mapping

import msgspec

from llmhostd.compute.estimator import CorrectionPolicy, ProfiledEstimator
from llmhostd.compute.prior import PriorPolicy, estimate
from llmhostd.domain.ids import HardwareKey, NodeId, ShapeKey
from llmhostd.domain.model import ModelShape
from llmhostd.domain.profile import Profile

ProfileKey = tuple[ShapeKey, HardwareKey]


class Profiles:
    """One per shape and hardware, and what each node makes of it."""

    def __init__(self, correction: CorrectionPolicy, prior: PriorPolicy) -> None:
        self._correction, self._prior = correction, prior
        self._profiles: dict[ProfileKey, Profile] = {}
        self._corrected: dict[tuple[ProfileKey, NodeId], Profile] = {}
        self._estimators: dict[tuple[ProfileKey, NodeId | None], ProfiledEstimator] = {}

    def __contains__(self, key: ProfileKey) -> bool:
        return key in self._profiles

    def __getitem__(self, key: ProfileKey) -> Profile:
        return self._profiles[key]

    def get(self, key: ProfileKey, node_id: NodeId | None = None) -> Profile | None:
        """Return what is known; on a node, with its own corrections."""
        corrected = self._corrected.get((key, node_id)) if node_id is not None else None
        return corrected or self._profiles.get(key)

    def estimator(self, key: ProfileKey, node_id: NodeId) -> ProfiledEstimator | None:
        """Return what a node's iterations are planned with; None: nothing is known."""
        return self._estimators.get((key, node_id)) or self._estimators.get((key, None))

    def learn(self, profile: Profile, node_id: NodeId | None) -> bool:
        """Remember a profile; whether it says something new of the hardware, rather than of one node.

        Nothing of an estimate where a measurement is known. Raises OperatorError for a profile without two full grids.
        """
        key = (profile.shape_key, profile.hardware_key)
        before = self._profiles.get(key)
        if before is not None and before.measured and not profile.measured:
            return False
        estimator = ProfiledEstimator(profile, self._correction)
        if before is not None and node_id is not None and _as_measured(profile) == _as_measured(before):
            self._corrected[key, node_id] = msgspec.structs.replace(profile, first_run_s=before.first_run_s)
            self._estimators[key, node_id] = estimator
            return False
        self._forget(key)
        self._profiles[key] = profile
        self._estimators[key, None] = estimator
        return True

    def estimate(self, shape: ModelShape, hardware_key: HardwareKey, shapes: Mapping[ShapeKey, ModelShape]) -> None:
        """Estimate a shape that was never measured there, from those that were, if it may be served on that."""
        if not self._prior.serve_unmeasured:
            return
        known = [
            (shapes[shape_key], profile)
            for (shape_key, hardware), profile in self._profiles.items()
            if hardware == hardware_key and profile.measured and shape_key in shapes
        ]
        profile = estimate(shape, hardware_key, known, self._prior)
        if profile is not None:
            self.learn(profile, None)

    def forget_estimates(self, hardware_key: HardwareKey, used: Collection[ProfileKey]) -> None:
        """Estimates that nobody serves by are made again when they are asked for: more is known then."""
        estimated = [key for key, one in self._profiles.items() if not one.measured and key[1] == hardware_key]
        for key in estimated:
            if key not in used:
                self._forget(key)

    def _forget(self, key: ProfileKey) -> None:
        self._profiles.pop(key, None)
        self._corrected = {which: one for which, one in self._corrected.items() if which[0] != key}
        self._estimators = {which: one for which, one in self._estimators.items() if which[0] != key}


def _as_measured(profile: Profile) -> Profile:
    """What was measured of it: not what a node learned since, nor the first run that its host foretold it."""
    return msgspec.structs.replace(profile, prefill_correction=1.0, decode_correction=1.0, first_run_s=0.0)
