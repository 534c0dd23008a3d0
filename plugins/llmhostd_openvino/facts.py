"""What is fast, slow or off on this CPU, and why?"""

from collections.abc import Collection
from pathlib import Path

import openvino as ov

from llmhostd.domain.model import ComputePrecision
from llmhostd.engines.interface import EngineFacts

_CPUINFO = Path("/proc/cpuinfo")
_FEATURES = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "sve", "asimd")


def cpu_flags() -> frozenset[str]:
    """Read the instruction sets of the first CPU."""
    for line in _CPUINFO.read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def hardware_precisions(flags: Collection[str]) -> tuple[ComputePrecision, ...]:
    """Precisions that the CPU multiplies natively, fastest first."""
    if "avx512_bf16" in flags or "amx_bf16" in flags:
        return (ComputePrecision.BF16, ComputePrecision.F32)
    return (ComputePrecision.F32,)


def engine_facts(core: ov.Core) -> EngineFacts:
    """See `Engine.facts`."""
    del core
    flags = cpu_flags()
    return EngineFacts(
        name="openvino",
        version=ov.__version__.split("-")[0],
        compute=hardware_precisions(flags),
        features=tuple(one for one in _FEATURES if one in flags),
        caveats=caveats(flags),
    )


def caveats(flags: Collection[str]) -> tuple[str, ...]:
    """Say what these instruction sets lack, what it costs and what would help."""
    said = []
    if "amx_bf16" not in flags and "avx512_bf16" in flags:
        said.append(
            "bf16 runs on AVX-512 BF16, not AMX: prefill is slower than on a CPU with AMX, decode is not "
            "(it waits for memory); a CPU with AMX would help long prompts"
        )
    elif "amx_bf16" not in flags:
        said.append(
            "no bf16 instructions (AVX-512 BF16 or AMX): everything is computed in f32, prefill is several times "
            "slower; int8 weights help decode"
        )
    if not {"avx512_vnni", "avx_vnni", "amx_int8"} & set(flags):
        said.append("no VNNI instructions: int8 and int4 weights save memory but decode no faster than their size says")
    if "avx512f" not in flags:
        said.append("no AVX-512: paged attention runs on AVX2 and is slower on long contexts")
    return tuple(said)
