"""What nodes does this box have, and what may each hold?"""

import re
from collections.abc import Sequence
from pathlib import Path

from llmhostd.config import NodeSettings
from llmhostd.devices.probe import hardware_key, memory_available_bytes, parse_cores, probe_cpu
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import NodeId

BF16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")
_ROOT = Path("/")
_AUTO, _ALL = "auto", "all"
_LEAST_RESERVE_BYTES = 1 << 30
_UNITS = {"": 0, "B": 0, "KB": 10, "MB": 20, "GB": 30, "TB": 40, "KIB": 10, "MIB": 20, "GIB": 30, "TIB": 40}


def node_specs(settings: Sequence[NodeSettings], root: Path = _ROOT) -> tuple[NodeSpec, ...]:
    """Resolve the configuration on this machine. Raises OperatorError naming the setting."""
    wanted = tuple(settings) or (NodeSettings(),)
    allowed = probe_cpu(root).cores
    cores = [_cores(one, f"nodes[{index}].cores", allowed) for index, one in enumerate(wanted)]
    _check_distinct(wanted, cores)
    memory = _memory(wanted, memory_available_bytes(root))
    specs = []
    for one, share, held in zip(wanted, cores, memory, strict=True):
        facts = probe_cpu(root, share)
        threads = facts.usable_threads
        key = hardware_key(facts, threads)
        specs.append(
            NodeSpec(
                id=NodeId(one.id), engine=one.engine, hardware_key=key, cores=share, threads=threads, memory_bytes=held
            )
        )
    return tuple(specs)


def has_bf16(root: Path = _ROOT) -> bool:
    """Whether the CPU computes bf16 in hardware."""
    return any(flag in BF16_FLAGS for flag in probe_cpu(root).flags)


def parse_bytes(text: str, where: str) -> int:
    """Read `24 GiB` or `512MB` (both in powers of two). Raises OperatorError naming `where`."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    unit = match[2].upper() if match else "?"
    if match is None or unit not in _UNITS:
        raise OperatorError(f"{where}: is {text!r}; expected `auto` or a size such as `24 GiB`")
    return int(float(match[1]) * 2 ** _UNITS[unit])


def _cores(one: NodeSettings, where: str, allowed: tuple[int, ...]) -> tuple[int, ...]:
    if one.cores == _ALL:
        return allowed
    try:
        cores = tuple(sorted(set(parse_cores(one.cores))))
    except ValueError as error:
        raise OperatorError(f"{where}: is {one.cores!r}; expected `all` or a list such as `0-3,8`") from error
    beyond = [core for core in cores if core not in allowed]
    if beyond or not cores:
        listed = ",".join(map(str, allowed))
        raise OperatorError(f"{where}: is {one.cores!r}; the daemon may use these cores only: {listed}")
    return cores


def _check_distinct(wanted: Sequence[NodeSettings], cores: list[tuple[int, ...]]) -> None:
    """Two nodes on one core would make each other ten times slower: their threads spin while they wait."""
    owner: dict[int, str] = {}
    for index, (one, share) in enumerate(zip(wanted, cores, strict=True)):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", one.id):
            raise OperatorError(f"nodes[{index}].id: is {one.id!r}; expected letters, digits, - and _")
        if any(other.id == one.id for other in wanted[:index]):
            raise OperatorError(f"nodes[{index}].id: {one.id!r} is taken by an earlier node")
        for core in share:
            if core in owner:
                raise OperatorError(f"nodes[{index}].cores: core {core} belongs to {owner[core]} already")
            owner[core] = one.id


def _memory(wanted: Sequence[NodeSettings], available_bytes: int) -> list[int]:
    """`auto` nodes share what is available, less the reserve and what others were given by number."""
    fixed = [None if one.memory == _AUTO else parse_bytes(one.memory, f"nodes[{index}].memory")
             for index, one in enumerate(wanted)]  # fmt: skip
    reserve = max(_LEAST_RESERVE_BYTES, available_bytes // 10)
    left = max(0, available_bytes - reserve - sum(one for one in fixed if one is not None))
    autos = sum(one is None for one in fixed)
    return [left // autos if one is None else one for one in fixed]
