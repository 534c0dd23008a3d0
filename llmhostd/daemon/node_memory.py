"""How much memory may each node's models hold together, and where does that figure come from?"""

import re
from collections import Counter
from collections.abc import Sequence

from llmhostd.config import NodeSettings
from llmhostd.daemon.node_defaults import Machine
from llmhostd.devices.budget import MemoryBudget, node_budget, spell
from llmhostd.devices.cgroup import memory_limits
from llmhostd.devices.gpus import GpuFacts
from llmhostd.devices.probe import memory_total_bytes
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.hardware import MemoryClaim, MemoryPool, NodeKind
from llmhostd.memory.machine_share import MachineMemoryPolicy, shareable_bytes

AUTO = "auto"
_UNITS = {"": 0, "B": 0, "KB": 10, "MB": 20, "GB": 30, "TB": 40, "KIB": 10, "MIB": 20, "GIB": 30, "TIB": 40}


def parse_bytes(text: str, where: str) -> int:
    """Read `24 GiB` or `512MB` (both in powers of two). Raises OperatorError naming `where`."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    unit = match[2].upper() if match else "?"
    if match is None or unit not in _UNITS:
        raise OperatorError(f"{where}: is {text!r}; expected `auto` or a size such as `24 GiB`")
    return int(float(match[1]) * 2 ** _UNITS[unit])


def device_memory(one: NodeSettings, card: GpuFacts | None, where: str, policy: MachineMemoryPolicy) -> MemoryBudget:
    """Of a GPU node: what is free on it less the reserve, or the number that was given. Raises OperatorError."""
    if one.memory != AUTO:
        given = parse_bytes(one.memory, where)
        if card and given > card.memory_bytes:
            raise OperatorError(f"{where}: is {one.memory}; {card.name} has {spell(card.memory_bytes)}")
        return MemoryBudget(bytes=given, because="given by number")
    if card is None:
        raise OperatorError(f"{where}: is `auto`; a node without a device has what you say: give a size like `24 GiB`")
    because = f"{card.name} has {spell(card.free_bytes)} free of {spell(card.memory_bytes)}, less the reserve"
    return MemoryBudget(bytes=shareable_bytes(card.free_bytes, 0, policy), because=because)


def memory_pools(
    wanted: Sequence[NodeSettings], cores: Sequence[tuple[int, ...]], machine: Machine
) -> list[tuple[MemoryPool, ...]]:
    """What bounds each node's memory: the machine, and the NUMA domain in which all its cores lie. None for GPU nodes.

    Raises OperatorError for numbers that could never fit, naming the setting and the most that would.
    """
    places = [index for index, one in enumerate(wanted) if one.kind is NodeKind.CPU]
    claims = dict(zip(places, _claims(places, wanted, cores, machine), strict=True))
    total = min([memory_total_bytes(machine.root), *(limit.limit_bytes for limit in memory_limits(machine.root))])
    pools: dict[int, list[MemoryPool]] = {place: [] for place in places}
    _add_pool(pools, claims, None, (), total)
    for domain in machine.domains:
        inside = [place for place in places if len(domain.numa) == 1 and set(cores[place]) <= set(domain.cores)]
        _add_pool(
            {place: pools[place] for place in inside}, claims, next(iter(domain.numa), None), domain.cores,
            domain.memory_bytes,
        )  # fmt: skip
    return [tuple(pools.get(index, ())) for index in range(len(wanted))]


def host_memory(pools: Sequence[MemoryPool], policy: MachineMemoryPolicy, machine: Machine) -> MemoryBudget:
    """What a CPU node's pools grant it now, before any worker holds anything."""
    return node_budget(pools, (), policy, machine.root)


def _claims(
    places: Sequence[int], wanted: Sequence[NodeSettings], cores: Sequence[tuple[int, ...]], machine: Machine
) -> list[MemoryClaim]:
    """Numbers as they are; nodes that say `auto` share evenly what these leave near to them."""
    near = {place: machine.domains_of(cores[place]) for place in places}
    given = {
        place: parse_bytes(wanted[place].memory, f"nodes[{place}].memory")
        for place in places
        if wanted[place].memory != AUTO
    }
    autos = Counter(domain.name for place in places if place not in given for domain in near[place])
    left = {domain.name: domain.memory_bytes for domain in machine.domains}
    for place, taken in given.items():
        for domain in near[place]:
            left[domain.name] -= taken // len(near[place])
    claims = []
    for place in places:
        if place in given:
            claims.append(MemoryClaim(weight=0, fixed_bytes=given[place]))
        else:
            parts = (left[domain.name] // autos[domain.name] >> 20 for domain in near[place])
            claims.append(MemoryClaim(weight=max(sum(parts), 1)))
    return claims


def _add_pool(
    pools: dict[int, list[MemoryPool]],
    claims: dict[int, MemoryClaim],
    domain: int | None,
    cores: tuple[int, ...],
    most_bytes: int,
) -> None:
    """Give each of these nodes its claim on one pool of at most so many bytes."""
    left = most_bytes
    for place in pools:
        given = claims[place].fixed_bytes or 0
        if given > left:
            where = "this machine" if domain is None else f"NUMA domain {domain}"
            raise OperatorError(
                f"nodes[{place}].memory: is {spell(given)}; {where} has {spell(most_bytes)}, of which earlier nodes "
                f"leave {spell(left)}: that is the most"
            )
        left -= given
    members = tuple(claims[place] for place in pools)
    for mine, place in enumerate(pools):
        pools[place].append(MemoryPool(claims=members, mine=mine, domain=domain, cores=cores))
