"""When could a model run its first iteration on a node? (ServerlessLLM §6.1: q + n / b.)

Start time = queue + bytes / bandwidth of the slowest tier + build + packing of the weights by the first iteration. What
was seen here decides; where nothing was, the profile of the shape, whose load was seen once; or else the settings.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from llmhostd.checkpoints.tiers import StartRates, slowest
from llmhostd.domain.ids import ShapeKey
from llmhostd.domain.model import ModelShape
from llmhostd.domain.profile import Profile
from llmhostd.domain.start import StorageTier, TierBytes


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One start as it is foretold. Seconds."""

    queue_s: float
    read_s: float
    build_s: float
    """Building and compiling, as far as it does not overlap with reading."""
    pack_s: float
    tier: StorageTier
    """Where most of the wait for bytes is."""
    hops_s: float = 0.0
    """Messages, and one thread's wait for another."""
    begun_s: float = 0.0
    """Of the first iteration's own work, what is done while weights are still being read."""

    @property
    def load_s(self) -> float:
        """From its turn to warm."""
        return self.read_s + self.build_s

    @property
    def warm_s(self) -> float:
        """From now to warm."""
        return self.queue_s + self.load_s

    @property
    def start_s(self) -> float:
        """From now until it can answer at its usual pace."""
        return self.warm_s + self.pack_s + self.hops_s

    def first_token_s(self, own_s: float) -> float:
        """From now to the end of a first iteration whose own work takes `own_s`."""
        return self.start_s + max(own_s - self.begun_s, 0.0)

    @property
    def because(self) -> str:
        """Where the time goes."""
        queue = f"queue {self.queue_s:.2f}, " if self.queue_s else ""
        return f"{queue}read from {self.tier} {self.read_s:.2f}, build {self.build_s:.2f}, pack {self.pack_s:.2f}"


@dataclass(frozen=True, slots=True)
class Pending:
    """A load that was ordered before."""

    load_s: float
    """How long it takes from its turn."""
    began_s: float | None
    """When its turn came; None: it still waits."""


def plan_load(
    shape: ModelShape,
    key: ShapeKey,
    lies: TierBytes,
    rates: StartRates,
    known: Profile | None,
    *,
    queue_s: float = 0.0,
    beside: bool = False,
    fresh: bool = False,
) -> LoadPlan:
    """Foretell a start. `key`: the shape's; `lies`: where its weights lie; `known`: its profile there, if any.

    `queue_s`: until its turn comes; `beside`: others compute while it loads; `fresh`: the first of its shape in its
    worker. Of the shape what was seen, else what was measured; of others what was seen, else estimated; else the
    settings.
    """
    tier = slowest(lies)
    extra_s = _pack_s(shape, key, rates, known, tier)
    load = _load(shape, key, lies, rates, known, tier, beside=beside, fresh=fresh)
    return LoadPlan(queue_s, *load, max(extra_s, 0.0), tier, rates.hops_s(key, tier, beside=beside), max(-extra_s, 0.0))


def _load(
    shape: ModelShape,
    key: ShapeKey,
    lies: TierBytes,
    rates: StartRates,
    known: Profile | None,
    tier: StorageTier,
    *,
    beside: bool,
    fresh: bool,
) -> tuple[float, float]:
    """Seconds for reading, and for building as far as that does not overlap."""
    rest_s = rates.rest_s(key, tier, beside=beside, fresh=fresh)
    fetch_s = rates.read_s(TierBytes(remote_bytes=lies.remote_bytes), beside=beside)
    if rest_s is None and known is not None and known.measured:
        return fetch_s, known.load_s
    rest_s = rates.rest_of_others_s(shape, fresh=fresh) if rest_s is None else rest_s
    if rest_s is None and known is not None:
        return fetch_s, known.load_s
    if rest_s is None:
        rest_s = shape.architecture.layers * rates.policy.build_layer_s
    return rates.read_s(lies, key, beside=beside), rest_s


def queue_s(before: Iterable[Pending], now: float) -> float:
    """How long a load waits for those before it on a node, where one runs at a time (ServerlessLLM §6.1).

    One that takes longer than foretold is expected to end at any moment.
    """
    free_s = now
    for one in before:
        free_s = free_s + one.load_s if one.began_s is None else max(free_s, one.began_s + one.load_s)
    return free_s - now


def _pack_s(shape: ModelShape, key: ShapeKey, rates: StartRates, known: Profile | None, tier: StorageTier) -> float:
    seen_s = rates.pack_s(key, tier)
    if seen_s is None and known is not None and known.measured:
        seen_s = known.first_run_s
    if seen_s is None:
        seen_s = rates.pack_of_others_s(shape)
    if seen_s is not None:
        return seen_s
    return known.first_run_s if known else shape.weight_bytes / rates.policy.pack_bytes_per_s
