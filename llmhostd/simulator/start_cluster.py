"""What does a cluster hold that starts models, and how does a decision see it? (ServerlessLLM §7.1, test bed ii.)

Servers with GPUs, host memory and a disk for checkpoints (least recently used) each, and a storage server behind a
network.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from llmhostd.domain.start import StorageTier, TierBytes
from llmhostd.domain.words import Word
from llmhostd.migration.start_choice import Model, Running, Server
from llmhostd.simulator.start_load import Asked


class Bed(Word):
    """Test bed (ii) of §7.1: 4 servers of 4 A40 each. What the paper does not say is marked."""

    servers: int = 4
    gpus: int = 4
    pool_bytes: int = 160_000_000_000
    """Host memory for checkpoints: two of OPT-30B fit and three do not (§7.3)."""
    memory_bytes_per_s: float = 20e9
    """Pinned memory to a GPU over PCIe 4.0 (ours)."""
    disk_bytes_per_s: float = 5e9
    """One PCIe 4.0 NVMe (ours)."""
    network_bytes_per_s: float = 1.25e9
    """From the storage server: 10 Gbps, as if every download had them to itself (§7.4)."""
    safetensors_bytes_per_s: float = 4e9
    """What others make of the same disk: with 10 Gbps they start OPT-6.7B in 12.1 s, with 100 in 3.8 s (§7.4)."""
    ssd_bytes: int = 0
    """Checkpoints that fit on a server's disk; 0: all do."""
    noise: float = 0.05
    """Deviation of the logarithm of a load's time (ours)."""
    resume_token_share: float = 0.1
    """Computing a token again takes this part of generating one (§5.2)."""
    resume_b_s: float = 0.05
    """(ours)"""
    timeout_s: float = 300.0


@dataclass(slots=True)
class Job:
    """One request under way."""

    id: int
    asked: Asked
    token_s: float
    server: int = -1
    done_tokens: int = 0
    """When it began to compute where it is now."""
    began_s: float | None = None
    """None: it does not compute."""
    ready_s: float | None = None
    """When it first could."""
    paused_s: float = 0.0
    stopped_s: float | None = None
    """Since when it waits to go on."""
    moving: bool = False
    """It is to go on elsewhere."""
    leaves_for: "Job | None" = None
    """Who gets its place."""
    waits_for: int = 0
    """How many must leave for it."""
    foretold_s: float = 0.0
    """When it was to be ready."""
    version: int = 0
    """What was to happen to an older one does not."""

    def tokens_at(self, now: float) -> int:
        """Output tokens by now."""
        if self.began_s is None:
            return self.done_tokens
        more = int(max(now - self.began_s, 0.0) / self.token_s)
        return min(self.done_tokens + more, self.asked.answer_tokens)

    @property
    def latency_s(self) -> float:
        """Start-up latency, pauses added (§7.1)."""
        return (self.ready_s or 0.0) - self.asked.arrived_s + self.paused_s


class Idle(NamedTuple):
    """A loaded instance that computes nothing."""

    model: Model
    until_s: float
    """When it is unloaded, if nobody has taken it."""


@dataclass(slots=True)
class Host:
    """One server of the cluster."""

    id: int
    gpus: int
    pool_bytes: int
    ssd_bytes: int = 0
    """0: its disk has every checkpoint."""
    io_free_s: float = 0.0
    """When the loads that were ordered are over."""
    taken_gpus: int = 0
    """Computed on, loaded for somebody, or waited for by somebody: more than there are while others leave."""
    idle: list[Idle] = field(default_factory=list)
    """Loaded instances that compute nothing, least recently used first."""
    ssd: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """The same of the checkpoints on its disk, where not all fit."""
    pool: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """Bytes of the checkpoints in host memory, least recently used first."""

    @property
    def free_gpus(self) -> int:
        """Nobody computes on them, or is about to."""
        return self.gpus - self.taken_gpus

    def take(self, model: Model) -> bool:
        """Take GPUs for an instance; idle ones give way. Whether one of that model was there."""
        self.taken_gpus += model.gpus
        found = next((each for each in self.idle if each.model == model), None)
        if found is not None:
            self.idle.remove(found)
            return True
        self.make_way()
        return False

    def expire(self, now: float) -> None:
        """Unload what was idle for long enough."""
        self.idle = [each for each in self.idle if each.until_s > now]

    def tier(self, model: Model) -> StorageTier:
        """Where a checkpoint is nearest."""
        if model.name in self.pool:
            return StorageTier.MEMORY
        return StorageTier.DISK if not self.ssd_bytes or model.name in self.ssd else StorageTier.REMOTE

    def make_way(self) -> None:
        """Let idle instances go whose GPUs are taken."""
        while self.idle and sum(each.model.gpus for each in self.idle) > max(self.free_gpus, 0):
            self.idle.pop(0)

    def give_back(self, model: Model, *, idle: bool, until_s: float = float("inf")) -> None:
        """Free the GPUs of an instance, which stays there until then, or somebody needs them, or is gone."""
        self.taken_gpus -= model.gpus
        if idle:
            self.idle.append(Idle(model, until_s))
            self.make_way()

    def bring_in(self, model: Model) -> None:
        """Have a checkpoint in host memory and on the disk; the least recently used leave."""
        for place, most_bytes in ((self.pool, self.pool_bytes), (self.ssd, self.ssd_bytes)):
            if not most_bytes:
                continue
            place[model.name] = model.weight_bytes
            place.move_to_end(model.name)
            while sum(place.values()) > most_bytes and len(place) > 1:
                place.popitem(last=False)


class Lies(Mapping[str, TierBytes]):
    """Where each model lies, as seen from a server: in its host memory, or on its disk."""

    __slots__ = ("_host", "_models")

    def __init__(self, host: Host, models: Mapping[str, Model]) -> None:
        self._host, self._models = host, models

    def __getitem__(self, name: str) -> TierBytes:
        return bytes_in(self._host.tier(self._models[name]), self._models[name].weight_bytes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)


def bytes_in(tier: StorageTier, size: int) -> TierBytes:
    """So many bytes in one tier."""
    match tier:
        case StorageTier.MEMORY:
            return TierBytes(memory_bytes=size)
        case StorageTier.DISK:
            return TierBytes(disk_bytes=size)
    return TierBytes(remote_bytes=size)


def hosts_of(bed: Bed, models: Sequence[Model]) -> list[Host]:
    """The cluster's servers; their disks are filled with the models in turn, as far as they hold them (§7.1)."""
    hosts = [Host(n, bed.gpus, bed.pool_bytes, bed.ssd_bytes) for n in range(bed.servers)]
    for n in range(len(models) * bed.servers if bed.ssd_bytes else 0):
        model, host = models[n % len(models)], hosts[(n + n // len(models)) % bed.servers]
        if sum(host.ssd.values()) + model.weight_bytes <= bed.ssd_bytes:
            host.ssd[model.name] = model.weight_bytes
    return hosts


def seen(host: Host, models: Mapping[str, Model], jobs: Sequence[Job], now: float) -> Server:
    """A server as a decision sees it. `jobs`: those that compute there and do not move yet."""
    idle: dict[str, int] = {}
    for each in host.idle:
        idle[each.model.name] = idle.get(each.model.name, 0) + 1
    running = [Running(one.id, one.asked.model, one.asked.prompt_tokens + one.tokens_at(now)) for one in jobs]
    return Server(host.id, host.free_gpus, max(host.io_free_s - now, 0.0), Lies(host, models), idle, running)
