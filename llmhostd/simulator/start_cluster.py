"""What does a cluster hold that starts models, and how does a decision see it? (ServerlessLLM §7.1, test bed ii.)

Servers with GPUs, host memory for checkpoints (least recently used) and a disk each.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from llmhostd.domain.start import TierBytes
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


@dataclass(slots=True)
class Host:
    """One server of the cluster."""

    id: int
    gpus: int
    pool_bytes: int
    io_free_s: float = 0.0
    """When the loads that were ordered are over."""
    taken_gpus: int = 0
    """Computed on, loaded for somebody, or waited for by somebody: more than there are while others leave."""
    idle: list[Model] = field(default_factory=list)
    """Loaded instances that compute nothing, least recently used first."""
    pool: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """Bytes of the checkpoints in host memory, least recently used first."""

    @property
    def free_gpus(self) -> int:
        """Nobody computes on them, or is about to."""
        return self.gpus - self.taken_gpus

    def take(self, model: Model) -> bool:
        """Take GPUs for an instance; idle ones give way. Whether one of that model was there."""
        self.taken_gpus += model.gpus
        if model in self.idle:
            self.idle.remove(model)
            return True
        self.make_way()
        return False

    def make_way(self) -> None:
        """Let idle instances go whose GPUs are taken."""
        while self.idle and sum(each.gpus for each in self.idle) > max(self.free_gpus, 0):
            self.idle.pop(0)

    def give_back(self, model: Model, *, idle: bool) -> None:
        """Free the GPUs of an instance, which stays there until somebody needs them, or is gone."""
        self.taken_gpus -= model.gpus
        if idle:
            self.idle.append(model)
            self.make_way()

    def bring_in(self, model: Model) -> None:
        """Have a checkpoint in host memory; the least recently used leave."""
        self.pool[model.name] = model.weight_bytes
        self.pool.move_to_end(model.name)
        while sum(self.pool.values()) > self.pool_bytes and len(self.pool) > 1:
            self.pool.popitem(last=False)


class Lies(Mapping[str, TierBytes]):
    """Where each model lies, as seen from a server: in its host memory, or on its disk."""

    __slots__ = ("_host", "_models")

    def __init__(self, host: Host, models: Mapping[str, Model]) -> None:
        self._host, self._models = host, models

    def __getitem__(self, name: str) -> TierBytes:
        size = self._models[name].weight_bytes
        return TierBytes(memory_bytes=size) if name in self._host.pool else TierBytes(disk_bytes=size)

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)


def seen(host: Host, models: Mapping[str, Model], jobs: Sequence[Job], now: float) -> Server:
    """A server as a decision sees it. `jobs`: those that compute there and do not move yet."""
    idle: dict[str, int] = {}
    for each in host.idle:
        idle[each.name] = idle.get(each.name, 0) + 1
    running = [Running(one.id, one.asked.model, one.asked.prompt_tokens + one.tokens_at(now)) for one in jobs]
    return Server(host.id, host.free_gpus, max(host.io_free_s - now, 0.0), Lies(host, models), idle, running)
