"""Which nodes does an experiment have?"""

import re
from pathlib import Path

import msgspec

from llmhostd.domain.errors import OperatorError
from llmhostd.domain.hardware import NodeKind, NodeSpec
from llmhostd.domain.ids import HardwareKey, NodeId
from llmhostd.domain.words import Word
from llmhostd.simulator.assumptions import GIB, Assumptions

HARDWARE = {NodeKind.CPU: "xeon-6462c-32c", NodeKind.GPU: "a100-80g"}
"""The paper's nodes (§IX-A), as the profiles file names them: what the shorthand means."""


class NodeGroup(Word, forbid_unknown_fields=True):
    """Alike nodes."""

    kind: NodeKind
    count: int
    node: str = ""
    """As the profiles file names it; empty: the paper's."""
    memory_gib: float | None = None
    """None: the paper's."""


class _File(Word, forbid_unknown_fields=True):
    nodes: tuple[NodeGroup, ...]


def read_cluster(text: str, assumptions: Assumptions) -> tuple[NodeSpec, ...]:
    """Read `4cpu+4gpu`, or a JSON file with `nodes`: kind, count, node, memory_gib.

    Raises OperatorError naming what cannot be read.
    """
    groups = _from_file(Path(text)) if Path(text).is_file() else _from_words(text)
    specs: list[NodeSpec] = []
    for group in groups:
        begin = sum(spec.kind is group.kind for spec in specs)
        specs += [_spec(group, begin + n, assumptions) for n in range(group.count)]
    if not specs:
        raise OperatorError(f"cluster {text} has no node")
    return tuple(specs)


def _from_words(text: str) -> tuple[NodeGroup, ...]:
    groups: list[NodeGroup] = []
    for part in text.split("+"):
        match = re.fullmatch(r"(\d+)(cpu|gpu)", part.strip())
        if match is None:
            raise OperatorError(f"cluster {text!r}: {part.strip()!r} is neither a file nor like `4cpu` or `4cpu+4gpu`")
        groups.append(NodeGroup(kind=NodeKind(match[2]), count=int(match[1])))
    return tuple(groups)


def _from_file(path: Path) -> tuple[NodeGroup, ...]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File).nodes
    except (OSError, msgspec.DecodeError) as error:
        raise OperatorError(f"cluster file {path} cannot be used: {error}") from error


def _spec(group: NodeGroup, number: int, assumptions: Assumptions) -> NodeSpec:
    gpu = group.kind is NodeKind.GPU
    usual_gib = assumptions.gpu_memory_gib if gpu else assumptions.cpu_memory_gib
    memory_gib = usual_gib if group.memory_gib is None else group.memory_gib
    return NodeSpec(
        id=NodeId(f"{group.kind}{number}"),
        engine="profiled",
        hardware_key=HardwareKey(group.node or HARDWARE[group.kind]),
        cores=(),
        memory_bytes=int(memory_gib * GIB),
        kind=group.kind,
        block_tokens=assumptions.gpu_block_tokens if gpu else assumptions.cpu_block_tokens,
    )
