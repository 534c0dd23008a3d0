"""On which cores does each configured node compute, and which are left to the daemon?"""

import re
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path

from llmhostd.config import NodeSettings
from llmhostd.devices.probe import core_siblings, parse_cores, spell_cores
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.hardware import NodeKind, NodeSpec

_ALL = "all"
_LIST = re.compile(r"\s*\d{1,5}(-\d{1,5})?(\s*,\s*\d{1,5}(-\d{1,5})?)*\s*")


def cores_of_nodes(wanted: Sequence[NodeSettings], allowed: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Resolve the core sets. Raises OperatorError naming the setting and what would do.

    No two nodes share a core: threads spin while they wait, and both would be ten times slower. GPU nodes that say
    `all` take what is left, or, if nothing is, live with the others: their thread mostly sleeps.
    """
    cores: list[tuple[int, ...]] = []
    owner: dict[int, str] = {}
    for index, one in enumerate(wanted):
        _check_id(wanted, index)
        floats = one.kind is NodeKind.GPU and one.cores == _ALL
        cores.append(() if floats else _cores(one, f"nodes[{index}].cores", allowed))
        if taken := [core for core in cores[index] if core in owner]:
            free = spell_cores(core for core in allowed if core not in owner)
            hint = f"free: `{free}`" if free else "no core is left for it"
            raise OperatorError(f"nodes[{index}].cores: core {taken[0]} belongs to {owner[taken[0]]} already; {hint}")
        owner |= dict.fromkeys(cores[index], one.id)
    rest = tuple(core for core in allowed if core not in owner) or allowed
    return [share or rest for share in cores]


def cores_of_daemon(nodes: Iterable[NodeSpec], allowed: Iterable[int]) -> set[int]:
    """Return all cores but those of threads that run iterations; all of them where no other is left.

    Engines put the thread that calls them on the first of their cores. Between two iterations it works alone, so that
    is when the daemon's work is free, on any core but that: there the kernel puts whoever is woken up by a message, and
    the device waits for it (156M in bf16 on two cores: 8 % of each token, tests/bench/test_http_cost.py).
    """
    cores = set(allowed)
    return cores - {one.cores[0] for one in nodes if one.kind is NodeKind.CPU} or cores


def sharing_caveat(cores: Sequence[int], others: Iterable[Sequence[int]], root: Path) -> str:
    """Say if a node's cores are the other hyper-threads of another node's; empty if not."""
    taken = {core for share in others for core in share}
    for core in cores:
        for sibling in core_siblings(core, root):
            if sibling in taken:
                return (
                    f"core {core} and another node's core {sibling} are hyper-threads of one physical core: "
                    "the nodes slow each other down"
                )
    return ""


def _check_id(wanted: Sequence[NodeSettings], index: int) -> None:
    name, taken = wanted[index].id, {other.id for other in wanted[:index]}
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise OperatorError(f"nodes[{index}].id: is {name!r}; expected letters, digits, - and _")
    if name in taken:
        stem = name.rstrip("0123456789")
        free = next(f"{stem}{n}" for n in count() if f"{stem}{n}" not in taken)
        raise OperatorError(f"nodes[{index}].id: {name!r} is taken by an earlier node; free: `{free}`")


def _cores(one: NodeSettings, where: str, allowed: tuple[int, ...]) -> tuple[int, ...]:
    if one.cores == _ALL:
        return allowed
    if not _LIST.fullmatch(one.cores):
        raise OperatorError(f"{where}: is {one.cores!r}; expected `all` or a list such as `0-3,8`")
    cores = tuple(sorted(set(parse_cores(one.cores))))
    if not cores or not set(cores) <= set(allowed):
        near = spell_cores(core for core in cores if core in allowed)
        hint = f"; the nearest is `{near}`" if near else ""
        raise OperatorError(
            f"{where}: is {one.cores!r}; the daemon may use these cores only: {spell_cores(allowed)}{hint}"
        )
    return cores
