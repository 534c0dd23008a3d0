"""How fast do weights come from each tier, and how long does the rest of a start take, going by what was seen?

ServerlessLLM §6.1: bandwidths are monitored, not configured, and of a pipeline the slowest tier counts. Each figure is
the median of the latest observations, so that a hiccup changes nothing, and a change of the machine shows after half a
window. On CPUs a load shares cores with those who compute, so what was seen beside them is kept apart (`beside`); where
one of both was never seen, the other stands in.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median

from llmhostd.domain.ids import ShapeKey
from llmhostd.domain.model import ModelShape
from llmhostd.domain.start import TIERS, StartSeen, StorageTier, TierBytes

_PASSES = {
    StorageTier.MEMORY: (StorageTier.MEMORY,),
    StorageTier.DISK: (StorageTier.DISK, StorageTier.MEMORY),
    StorageTier.REMOTE: (StorageTier.REMOTE, StorageTier.DISK, StorageTier.MEMORY),
}
"""The tiers that bytes pass on their way, in a pipeline."""
_HOPS = "hops"
_COMPILED = "compiled"
"""What a load that compiled would have taken if it had not."""
_TELLING_SHARE = 0.5
"""A load tells of a tier's bandwidth when at least this part of its bytes came from there."""
_SLOW_SHARE = 0.1
"""A load is one from the slowest tier that this part of its bytes came from."""


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """How start times are estimated: from what was seen, as soon as anything was."""

    window: int = 9
    """Each bandwidth and each rate is the median of so many latest observations."""
    memory_bytes_per_s: float = 3e9
    """Weights brought in from host memory (the page cache), before a load was seen."""
    disk_bytes_per_s: float = 1e9
    """The same from a disk."""
    remote_bytes_per_s: float = 1e8
    """The same over a network."""
    build_layer_s: float = 0.03
    """Building and compiling one layer, before a load was seen."""
    pack_bytes_per_s: float = 2e9
    """Weights packed by a first iteration, before one was seen."""


class Windows:
    """The latest observations of several figures, and the median of each."""

    __slots__ = ("_size", "_values")

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: dict[Hashable, deque[float]] = {}

    def __bool__(self) -> bool:
        """Whether anything was ever observed."""
        return bool(self._values)

    def observe(self, key: Hashable, value: float) -> None:
        """Add an observation; the oldest goes when there are too many."""
        self._values.setdefault(key, deque(maxlen=self._size)).append(value)

    def median(self, *keys: Hashable) -> float | None:
        """The median of the first of these figures that was ever observed; None: none of them was."""
        found = (self._values[key] for key in keys if key in self._values)
        return next((median(values) for values in found), None)


@dataclass(slots=True)
class StartRates:
    """What nodes of one kind of hardware on this box were seen to do."""

    policy: StartPolicy
    _tiers: Windows = field(init=False)
    _rests: Windows = field(init=False)
    _packs: Windows = field(init=False)

    def __post_init__(self) -> None:
        """Begin with nothing seen."""
        self._tiers, self._rests, self._packs = (Windows(self.policy.window) for _ in range(3))

    def learn(self, seen: StartSeen) -> None:
        """Take a start into account."""
        self._learn_bandwidth(seen)
        tier = slowest(seen.came_from)
        if seen.load_s > 0.0:
            read_s = seen.read_s or self.read_s(seen.came_from, seen.shape_key, beside=seen.beside)
            rest_s = max(seen.load_s - read_s, 0.0)
            self._rests.observe((seen.shape_key, tier, seen.beside, seen.fresh), rest_s)
            if seen.fresh:
                self._rests.observe((seen.shape_key, _COMPILED), max(rest_s - seen.compile_s, 0.0))
            if tier is not StorageTier.REMOTE:  # what is built beside a fetch hardly shows
                self._rests.observe((seen.weights, seen.fresh), rest_s / max(seen.layers, 1))
        if seen.pack_s is not None:
            extra_s = seen.pack_s - seen.begun_s
            self._packs.observe((seen.shape_key, tier, seen.packed_beside), extra_s)
            self._packs.observe(seen.weights, max(extra_s, 0.0) / max(seen.weight_bytes, 1))
        if seen.hops_s is not None:
            self._packs.observe((_HOPS, seen.beside), seen.hops_s)
            self._packs.observe((_HOPS, seen.shape_key, tier, seen.beside), seen.hops_s)

    def bytes_per_s(self, tier: StorageTier, key: ShapeKey | None = None, *, beside: bool = False) -> float:
        """How fast weights come from a tier: as the slowest part of their way lets them.

        Those of a shape, where they were seen, with others beside it or not: of small ones more of the time is not
        bandwidth, and with large ones an iteration begins meanwhile; over a network that hardly shows.
        Where nobody saw it, as the settings say, but no faster than what it passes was seen to be, and no slower than
        what passes it.
        """
        seen = {
            each: self._tiers.median((each, key, beside), (each, key, not beside), (each, beside), (each, not beside))
            for each in TIERS
        }
        limits = [pace for each in _PASSES[tier] if (pace := seen[each]) is not None]
        own = seen[tier]
        if own is None:
            passing = [pace for each in TIERS if tier in _PASSES[each] and (pace := seen[each]) is not None]
            own = max([self._unseen_bytes_per_s(tier), *passing])
        return min([own, *limits])

    def read_s(self, lies: TierBytes, key: ShapeKey | None = None, *, beside: bool = False) -> float:
        """How long it takes to bring weights (of a shape) in that lie so."""
        return sum(lies.of(tier) / self.bytes_per_s(tier, key, beside=beside) for tier in TIERS if lies.of(tier))

    def rest_s(self, key: ShapeKey, tier: StorageTier, *, beside: bool = False, fresh: bool = False) -> float | None:
        """How long loads of a shape go on after their last byte came in from a tier; None: none was seen.

        Those from another tier tell nearly the same, where there was none from this one. `fresh`: the first of its
        shape in its worker, which compiles what the others find compiled.
        """
        if not self._rests:
            return None
        places = [(each, near) for near in (beside, not beside) for each in (tier, *TIERS)]
        alike = [(key, each, near, fresh) for each, near in places]
        others = [(key, each, near, not fresh) for each, near in places]
        return self._rests.median(*alike, (key, _COMPILED), *others)

    def pack_s(self, key: ShapeKey, tier: StorageTier = StorageTier.MEMORY, *, beside: bool = False) -> float | None:
        """How much longer first iterations of a shape take than others do; None: none was seen.

        Negative: a part of them is done while weights still come from the tier.
        """
        if not self._packs:
            return None
        return self._packs.median(*((key, each, near) for near in (beside, not beside) for each in (tier, *TIERS)))

    def hops_s(self, key: ShapeKey, tier: StorageTier, *, beside: bool = False) -> float:
        """What a start takes beside its stages: messages, and one thread's wait for another.

        That a load is over is told between two iterations, its own or a neighbour's: so it depends on shape and tier,
        and on whether others compute.
        """
        return self._packs.median((_HOPS, key, tier, beside), (_HOPS, beside), (_HOPS, not beside)) or 0.0

    def rest_of_others_s(self, shape: ModelShape, *, fresh: bool = False) -> float | None:
        """What loads of other shapes in the same weight format suggest, by layers; None: none was seen."""
        rate = self._rests.median((shape.weights, fresh), (shape.weights, not fresh))
        return _times(rate, shape.architecture.layers)

    def pack_of_others_s(self, shape: ModelShape) -> float | None:
        """The same for first iterations, by bytes."""
        return _times(self._packs.median(shape.weights), shape.weight_bytes)

    def _learn_bandwidth(self, seen: StartSeen) -> None:
        """A load mostly from one tier tells of that tier; what came from host memory beside it is taken off."""
        lay, total_bytes = seen.came_from, seen.came_from.total_bytes
        if not total_bytes or seen.read_s <= 0.0:
            return
        tier = slowest(lay)
        if lay.of(tier) < _TELLING_SHARE * total_bytes:
            return
        nearer = TierBytes() if tier is not StorageTier.DISK else TierBytes(memory_bytes=lay.memory_bytes)
        nearer_s = self.read_s(nearer, seen.shape_key, beside=seen.beside)
        if nearer_s >= seen.read_s:
            return
        pace = lay.of(tier) / (seen.read_s - nearer_s)
        self._tiers.observe((tier, seen.beside), pace)
        if tier is not StorageTier.REMOTE:
            self._tiers.observe((tier, seen.shape_key, seen.beside), pace)

    def _unseen_bytes_per_s(self, tier: StorageTier) -> float:
        policy = self.policy
        return {
            StorageTier.MEMORY: policy.memory_bytes_per_s,
            StorageTier.DISK: policy.disk_bytes_per_s,
            StorageTier.REMOTE: policy.remote_bytes_per_s,
        }[tier]


def slowest(lies: TierBytes) -> StorageTier:
    """The slowest tier that a considerable part of some weights comes from; host memory if nothing is known."""
    least_bytes = max(_SLOW_SHARE * lies.total_bytes, 1)
    slow = [tier for tier in TIERS if lies.of(tier) >= least_bytes]
    return slow[-1] if slow else StorageTier.MEMORY


def _times(rate: float | None, amount: float) -> float | None:
    return None if rate is None else rate * amount
