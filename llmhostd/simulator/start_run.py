"""How long do callers wait for models to start when GPUs are contended? (ServerlessLLM §7.3, §7.4.)

Policies decide the same events: `serverless` takes any GPU that nobody computes on, `shepherd*` the one where the
model starts soonest, stopping somebody if need be, and `serverlessllm` lets those go on elsewhere as their tokens.
`ray serve` takes an idle instance or any GPU, downloads and loads one after the other with another loader, keeps
idle instances for as long as that took, and keeps no checkpoints, or (`with cache`) those that fit on the disk.
Estimates are made by `checkpoints.tiers` and learn from every load, as in the daemon.
"""

from collections import Counter, deque
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from heapq import heappop, heappush
from math import exp

import msgspec

from llmhostd.checkpoints.tiers import StartPolicy, StartRates
from llmhostd.domain.ids import HardwareKey, ModelName, NodeId, ShapeKey
from llmhostd.domain.model import WeightFormat
from llmhostd.domain.start import StartSeen, StorageTier
from llmhostd.domain.words import Word
from llmhostd.migration.cost import ResumeCost
from llmhostd.migration.start_choice import (
    Model,
    Running,
    Server,
    Way,
    load_s,
    soonest,
    soonest_by_stopping,
)
from llmhostd.simulator.chance import Chance, Purpose
from llmhostd.simulator.start_cluster import Bed, Host, Job, bytes_in, hosts_of, seen
from llmhostd.simulator.start_load import SIZES, StartLoad, asked_of, models_of


class Scheduler(StrEnum):
    """Who decides where a model starts."""

    SERVERLESS = "serverless"
    SHEPHERD = "shepherd*"
    SERVERLESSLLM = "serverlessllm"
    RAY = "ray serve"
    RAY_CACHE = "ray serve with cache"


SCHEDULERS = (Scheduler.SERVERLESS, Scheduler.SHEPHERD, Scheduler.SERVERLESSLLM)
"""Those of one system that differ in where a model starts (§7.3)."""
SYSTEMS = (Scheduler.RAY, Scheduler.RAY_CACHE, Scheduler.SERVERLESSLLM)
"""Whole systems (§7.4)."""
OTHER_SYSTEMS = (Scheduler.RAY, Scheduler.RAY_CACHE)


class StartOutcome(Word):
    """What came out of one run."""

    latencies_s: tuple[float, ...]
    """Start-up latency of every request, pauses added; the time limit for those that were given up."""
    given_up: int
    migrations: int
    preemptions: int
    loads: int
    from_disk: int
    """Loads whose checkpoint was not in host memory."""
    downloads: int
    """Of them, those whose checkpoint was not on the disk either."""
    estimate_errors: tuple[float, ...]
    """Of every load: how far its estimate was off, as a part of the truth."""

    @property
    def mean_s(self) -> float:
        """Mean start-up latency."""
        return sum(self.latencies_s) / max(len(self.latencies_s), 1)

    def percentile_s(self, part: float) -> float:
        """Start-up latency that a part 0-1 of the requests did not exceed."""
        ordered = sorted(self.latencies_s)
        return ordered[min(int(part * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def run_starts(load: StartLoad, scheduler: Scheduler, bed: Bed | None = None) -> StartOutcome:
    """Play one load under one scheduler. The same arguments give the same outcome."""
    cluster = StartCluster(load, scheduler, bed or Bed())
    cluster.run()
    return cluster.outcome()


class StartCluster:
    """Events in order of time: arrivals, loads and answers that end, moves that arrive."""

    def __init__(self, load: StartLoad, scheduler: Scheduler, bed: Bed) -> None:
        self._bed, self._scheduler, self._load = bed, scheduler, load
        self._models = {one.name: one for one in models_of(load)}
        if scheduler in OTHER_SYSTEMS:
            bed = msgspec.structs.replace(bed, pool_bytes=0, ssd_bytes=bed.ssd_bytes if _caches(scheduler) else 1)
        self._hosts = hosts_of(bed, models_of(load))
        self._rates = StartRates(StartPolicy())
        self._token_s = SIZES[load.size].token_s
        self._resume = ResumeCost(bed.resume_token_share * self._token_s, bed.resume_b_s)
        self._places, self._noise = (Chance(load.seed, each) for each in (Purpose.START_PLACES, Purpose.START_NOISE))
        self._jobs: dict[int, Job] = {}
        """Those that compute."""
        self._waiting: deque[Job] = deque()
        self._ended: list[Job] = []
        self._counts: Counter[str] = Counter()
        self._errors: list[float] = []
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._caused = 0
        for number, asked in enumerate(asked_of(load)):
            self._later(asked.arrived_s, partial(self._arrive, Job(number, asked, self._token_s)))

    def run(self) -> None:
        """Let everything happen."""
        while self.step():
            pass

    def step(self) -> bool:
        """Let the next thing happen; whether there was one."""
        if not self._heap:
            return False
        now, _, what = heappop(self._heap)
        what(now)
        return True

    def violations(self) -> list[str]:
        """What cannot be, a sentence each."""
        broken = []
        for host in self._hosts:
            computing = sum(one.asked.model.gpus for one in self._jobs.values() if one.server == host.id)
            idle = sum(each.model.gpus for each in host.idle)
            if computing + idle > host.gpus:
                broken.append(f"server {host.id} computes on {computing} GPUs and keeps {idle}, of {host.gpus}")
            if sum(host.pool.values()) > max(host.pool_bytes, *host.pool.values(), 0):
                broken.append(f"server {host.id} has more checkpoints in memory than fit")
        return broken

    def outcome(self) -> StartOutcome:
        """What came out."""
        limit_s = self._bed.timeout_s
        return StartOutcome(
            latencies_s=tuple(min(one.latency_s, limit_s) for one in self._ended),
            given_up=self._counts["given_up"],
            migrations=self._counts["migrations"],
            preemptions=self._counts["preemptions"],
            loads=self._counts["loads"],
            from_disk=self._counts["from_disk"],
            downloads=self._counts["downloads"],
            estimate_errors=tuple(self._errors),
        )

    def _later(self, at_s: float, what: Callable[[float], None]) -> None:
        self._caused += 1
        heappush(self._heap, (at_s, self._caused, what))

    def _arrive(self, job: Job, now: float) -> None:
        self._waiting.append(job)
        self._dispatch(now)

    def _dispatch(self, now: float) -> None:
        """Place who waits, in order; who stopped for others first (§6.3: pending loads are retried)."""
        while self._waiting:
            job = self._waiting[0]
            if job.ready_s is None and now - job.asked.arrived_s > self._bed.timeout_s:
                self._counts["given_up"] += 1
                job.ready_s = now
                self._ended.append(self._waiting.popleft())
            elif (begin := self._way(job, now)) is not None:
                self._waiting.popleft()
                begin(now)
            else:
                return

    def _way(self, job: Job, now: float) -> Callable[[float], None] | None:
        """How to start a job now; None: it must wait. Who was stopped stops nobody."""
        for host in self._hosts:
            host.expire(now)
        servers = [self._seen(host, now, may_move=job.stopped_s is None) for host in self._hosts]
        model, way, stopped = job.asked.model, None, list[Running]()
        if self._scheduler is Scheduler.SERVERLESS:
            way = self._any(model, servers)
        elif self._scheduler in OTHER_SYSTEMS:
            way = self._any(model, [one for one in servers if one.idle.get(model.name)]) or self._any(model, servers)
        elif self._scheduler is Scheduler.SERVERLESSLLM:
            way = soonest(model, servers, self._rates.read_s, self._resume)
        elif (found := soonest_by_stopping(model, servers, self._rates.read_s)) is not None:
            way, stopped = found
        return None if way is None else lambda then: self._start(job, way, stopped, then)

    def _any(self, model: Model, servers: list[Server]) -> Way | None:
        """Take any GPU that nobody computes on."""
        free = [one for one in servers if one.free_gpus >= model.gpus for _ in range(one.free_gpus)]
        if not free:
            return None
        server = free[int(self._places.uniform() * len(free))]
        return Way(server.id, load_s(model, server, self._rates.read_s))

    def _seen(self, host: Host, now: float, *, may_move: bool) -> Server:
        jobs = [one for one in self._jobs.values() if one.server == host.id and not one.moving] if may_move else []
        return seen(host, self._models, jobs, now)

    def _start(self, job: Job, way: Way, stopped: list[Running], now: float) -> None:
        host, model = self._hosts[way.server], job.asked.model
        job.server, job.foretold_s = host.id, now + way.start_s
        for each in stopped:
            self._stop(self._jobs[each.id], now)
        loaded = host.take(model)
        if not way.moves:
            self._read(host, model, now, loaded, lambda then: self._ready(job, then))
            return
        leaving = [(self._jobs[move.who.id], self._hosts[move.to]) for move in way.moves]
        job.waits_for = len(leaving)
        for victim, to in leaving:
            victim.leaves_for = job
            self._move(victim, to, now)

    def _read(self, host: Host, model: Model, now: float, loaded: bool, then: Callable[[float], None]) -> None:
        """Load weights when the loads before are over; nothing where they are loaded."""
        if loaded:
            self._later(now, then)
            return
        tier = host.tier(model)
        takes_s = self._takes_s(model, tier) * exp(self._bed.noise * self._noise.normal())
        # Others' downloads are taken to have the network to themselves (§7.4).
        begins_s = now if self._scheduler in OTHER_SYSTEMS else max(now, host.io_free_s)
        host.io_free_s = over_s = begins_s + takes_s
        if self._scheduler is not Scheduler.RAY:  # it keeps nothing
            host.bring_in(model)
        self._counts["loads"] += 1
        self._counts["from_disk"] += tier is not StorageTier.MEMORY
        self._counts["downloads"] += tier is StorageTier.REMOTE

        def ended(at_s: float) -> None:
            self._learn(host, model, tier, takes_s)
            then(at_s)

        self._later(over_s, ended)

    def _takes_s(self, model: Model, tier: StorageTier) -> float:
        """Time of one load without noise: by the slowest tier in a pipeline, or one after the other by others."""
        bed, size = self._bed, model.weight_bytes
        if self._scheduler in OTHER_SYSTEMS:
            fetch_s = size / bed.network_bytes_per_s if tier is StorageTier.REMOTE else 0.0
            return fetch_s + size / bed.safetensors_bytes_per_s
        paces = {
            StorageTier.MEMORY: bed.memory_bytes_per_s,
            StorageTier.DISK: bed.disk_bytes_per_s,
            StorageTier.REMOTE: bed.network_bytes_per_s,
        }
        return size / paces[tier]

    def _learn(self, host: Host, model: Model, tier: StorageTier, took_s: float) -> None:
        size = model.weight_bytes
        lay = bytes_in(tier, size)
        self._rates.learn(
            StartSeen(
                model=ModelName(model.name), node_id=NodeId(str(host.id)), hardware_key=HardwareKey("server"),
                shape_key=ShapeKey(self._load.size), weights=WeightFormat.F16, layers=1, weight_bytes=size,
                came_from=lay, read_s=took_s, load_s=took_s,
            )
        )  # fmt: skip

    def _ready(self, job: Job, now: float) -> None:
        """Its model is loaded: it begins, or goes on after it was stopped, once its context is computed."""
        prefill_s = self._resume.seconds_per_token * (job.asked.prompt_tokens + job.done_tokens)
        if job.ready_s is None:
            job.ready_s = now
            if now > job.asked.arrived_s and job.foretold_s > job.asked.arrived_s:
                self._errors.append(abs(job.foretold_s - now) / max(now - job.asked.arrived_s, 1e-9))
        elif job.stopped_s is not None:
            job.paused_s += now + prefill_s - job.stopped_s
            job.stopped_s = None
        self._compute(job, now + prefill_s)

    def _compute(self, job: Job, begins_s: float) -> None:
        self._jobs[job.id] = job
        job.began_s = begins_s
        job.version += 1
        version, left = job.version, job.asked.answer_tokens - job.done_tokens
        self._later(begins_s + left * job.token_s, lambda now: self._finish(job, version, now))

    def _finish(self, job: Job, version: int, now: float) -> None:
        if job.version != version:
            return
        del self._jobs[job.id]
        job.version += 1
        self._ended.append(job)
        self._vacate(job, now, idle=job.leaves_for is None)

    def _vacate(self, job: Job, now: float, *, idle: bool) -> None:
        """Leave a server; whoever waits for that goes on."""
        host, waiting = self._hosts[job.server], job.leaves_for
        kept_s = float("inf")
        if self._scheduler in OTHER_SYSTEMS:
            kept_s = self._takes_s(
                job.asked.model, StorageTier.DISK if _caches(self._scheduler) else StorageTier.REMOTE
            )
        host.give_back(job.asked.model, idle=idle, until_s=now + kept_s)
        job.leaves_for = None
        if waiting is not None:
            waiting.waits_for -= 1
            if not waiting.waits_for:
                there = self._hosts[waiting.server]
                self._read(there, waiting.asked.model, now, loaded=False, then=lambda then: self._ready(waiting, then))
        self._dispatch(now)

    def _stop(self, job: Job, now: float) -> None:
        """Preempt: it waits, in front of everybody, until it can go on somewhere."""
        self._counts["preemptions"] += 1
        del self._jobs[job.id]
        job.done_tokens, job.began_s, job.stopped_s = job.tokens_at(now), None, now
        job.version += 1
        self._hosts[job.server].give_back(job.asked.model, idle=False)
        self._waiting.appendleft(job)

    def _move(self, job: Job, to: Host, now: float) -> None:
        """Migrate (§5.3): load there, compute its tokens there while it goes on here, then switch."""
        self._counts["migrations"] += 1
        version, loaded = job.version, to.take(job.asked.model)
        job.moving = True

        def arrived(then: float) -> None:
            known = job.tokens_at(then)
            takes_s = self._resume.resume_s(job.asked.prompt_tokens + known) if job.version == version else 0.0
            self._later(then + takes_s, lambda at_s: self._switch(job, version, to, known, at_s))

        self._read(to, job.asked.model, now, loaded, arrived)

    def _switch(self, job: Job, version: int, to: Host, known: int, now: float) -> None:
        if job.version != version:  # it ended meanwhile (§5.4)
            to.give_back(job.asked.model, idle=True)
            self._dispatch(now)
            return
        tokens = job.tokens_at(now)
        pause_s = self._resume.resume_s(tokens - known)
        job.done_tokens, job.moving = tokens, False
        job.paused_s += pause_s
        source = job.server
        self._compute(job, now + pause_s)
        job.server = source
        self._vacate(job, now, idle=False)
        job.server = to.id


def _caches(scheduler: Scheduler) -> bool:
    return scheduler is Scheduler.RAY_CACHE
