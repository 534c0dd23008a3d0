"""The real daemon, decided for by a baseline of SLINFER §IX-A: exclusive swap (width 2), or static halves (width 1).

python baseline_daemon.py CONFIG STATE_DIR WIDTH LIMIT
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from llmhostd.config import load_config
from llmhostd.daemon.life import run
from llmhostd.domain.actions import HostAction
from llmhostd.domain.events import HostEvent
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import HardwareKey, NodeId, ShapeKey
from llmhostd.domain.reports import NodeDown, NodeUp
from llmhostd.domain.snapshot import NodeSnapshot
from llmhostd.host.snapshots import MindSnapshot
from llmhostd.simulator.baselines import BaselinePolicy, ExclusiveMind


class Everywhere(Mapping[tuple[ShapeKey, HardwareKey], int]):
    """The same number for every model on every node."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __getitem__(self, key: tuple[ShapeKey, HardwareKey]) -> int:
        return self._number

    def __iter__(self) -> Iterator[tuple[ShapeKey, HardwareKey]]:
        return iter(())

    def __len__(self) -> int:
        return 0


class Baseline(ExclusiveMind):
    """Shows of itself only which nodes are up: it is measured from outside."""

    def __init__(self, nodes: Sequence[NodeSpec], policy: BaselinePolicy) -> None:
        super().__init__(nodes, policy)
        self._specs = {spec.id: spec for spec in nodes}
        self._up: dict[NodeId, bool] = {}

    def step(self, event: HostEvent, now: float) -> list[HostAction]:
        """Note who is up."""
        if isinstance(event, NodeUp | NodeDown):
            self._up[event.node_id] = isinstance(event, NodeUp)
        return super().step(event, now)

    def snapshot(self, now: float) -> MindSnapshot:
        """Say who is up; nothing else is looked at."""
        nodes = tuple(self._node(spec) for spec in self._specs.values())
        return MindSnapshot(nodes=nodes, models=(), instances=(), requests=())

    def _node(self, spec: NodeSpec) -> NodeSnapshot:
        nothing = dict.fromkeys(("weights_bytes", "kv_bytes", "kv_used_bytes", "free_bytes", "restarts"), 0)
        idle = dict.fromkeys(("busy", "iterations_per_s", "tokens_per_s"), 0.0)
        return NodeSnapshot(
            id=spec.id,
            kind=spec.kind,
            engine=spec.engine,
            hardware=spec.hardware_key,
            cores=spec.cores,
            memory_bytes=spec.memory_bytes,
            up=self._up.get(spec.id, False),
            **nothing,
            **idle,
        )


def main(config: str, state_dir: str, width: str, limit: str) -> None:
    """Serve until SIGTERM."""
    policy = BaselinePolicy(limits=Everywhere(int(limit)), widths=Everywhere(int(width)))

    def make(nodes: Sequence[NodeSpec]) -> Baseline:
        return Baseline(nodes, policy)

    run(load_config(Path(config)), Path(state_dir), make)


main(*sys.argv[1:])
