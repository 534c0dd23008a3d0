"""Which instances wait for weights that come over the network, and when is it their turn with the builder?

The network is slower than the builder, so nobody builds while most is still to come, and nobody else's load waits for
it: what is left must come in about the time that a build takes. The rest comes while it is built.
"""

import time
from collections.abc import Iterable, Sequence

import msgspec

from llmhostd.domain.commands import LoadInstance
from llmhostd.domain.errors import CheckpointError
from llmhostd.domain.ids import InstanceId, NodeId
from llmhostd.domain.node_events import NodeEvent, WeightsNear
from llmhostd.domain.reports import LoadStages, WeightsFetched
from llmhostd.loader.fetch import Fetch
from llmhostd.loader.range_fetch import FetchPolicy
from llmhostd.loader.store_index import arrives, read_remote
from llmhostd.worker.hosted import Hosted
from llmhostd.worker.link import Link

_LEAST_LEAD_S = 1.0
_TELL_EVERY_S = 0.25


class Arrivals:
    """Begins fetches, says how far they are, and when they are near enough."""

    def __init__(self, node_id: NodeId, policy: FetchPolicy, link: Link, *, streams: bool) -> None:
        """`streams`: the engine builds while weights are still coming."""
        self._node_id, self._policy, self._link, self._streams = node_id, policy, link, streams
        self._told_s: dict[InstanceId, float] = {}
        """When it was last said how far those are that are not here yet."""

    def expect(self, hosted: Hosted) -> LoadInstance:
        """Begin to fetch what an instance lacks; returns its order as its node's mind is to hear it."""
        command = hosted.command
        try:
            remote = read_remote(hosted.checkpoint) if arrives(hosted.checkpoint) else None
        except CheckpointError:
            remote = None  # its load says so
        if remote is None:
            return command
        hosted.fetch = Fetch(hosted.checkpoint, self._policy, remote.data_bytes, self._link.ring)
        self._told_s[hosted.id] = 0.0
        return msgspec.structs.replace(command, arriving=True)

    def look(self, instances: Iterable[Hosted]) -> Sequence[NodeEvent]:
        """Say how far everything is; returns for whom it is near enough, or will never come."""
        if not self._told_s:
            return ()
        events, now = list[NodeEvent](), time.monotonic()
        waiting = {one.id: one for one in instances if one.id in self._told_s}
        for key in list(self._told_s):
            one = waiting.get(key)
            if one is None or one.fetch is None:
                del self._told_s[key]
                continue
            near = one.near or self._near(one, one.fetch)
            if near is not one.near or now - self._told_s[key] >= _TELL_EVERY_S:
                self._told_s[key] = now
                self._link.send(self._progress(one, one.fetch, near=near))
            if near is not one.near:
                one.near = near
                events.append(WeightsNear(instance_id=one.id))
            if one.fetch.over:
                del self._told_s[key]
        return events

    def over(self, hosted: Hosted, stages: LoadStages, took_s: float) -> tuple[LoadStages, float]:
        """Count what was fetched before it was built; returns how long that took, too."""
        fetch, hosted.fetch = hosted.fetch, None
        if fetch is None:
            return stages, 0.0
        before_s = max(time.monotonic() - fetch.began_s - took_s, 0.0)
        read_s = before_s + stages.read_s if stages.read_bytes else fetch.here_s or before_s
        stages = msgspec.structs.replace(
            stages,
            read_s=read_s,
            read_bytes=stages.read_bytes or fetch.data_bytes,
            remote_bytes=fetch.state.fetched_bytes,
        )
        return stages, before_s

    def _near(self, hosted: Hosted, fetch: Fetch) -> bool:
        if fetch.over or not self._streams:
            return fetch.over
        profile = hosted.command.profile
        lead_s = max(_LEAST_LEAD_S, profile.load_s if profile else 0.0)
        return fetch.state.here_bytes > 0 and fetch.left_bytes <= lead_s * fetch.bytes_per_s

    def _progress(self, hosted: Hosted, fetch: Fetch, *, near: bool) -> WeightsFetched:
        return WeightsFetched(
            node_id=self._node_id,
            instance_id=hosted.id,
            here_bytes=fetch.data_bytes - fetch.left_bytes,
            total_bytes=fetch.data_bytes,
            bytes_per_s=fetch.bytes_per_s,
            near=near,
        )
