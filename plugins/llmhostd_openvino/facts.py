"""What is fast, slow or off on this CPU, and why?"""

from collections.abc import Collection

import openvino as ov

from llmhostd.engines.interface import EngineFacts
from llmhostd_openvino.precisions import cpu_flags, hardware_precisions

_FEATURES = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "sve", "asimd")


def engine_facts() -> EngineFacts:
    """See `Engine.facts`."""
    flags = cpu_flags()
    return EngineFacts(
        name="openvino",
        version=ov.__version__.split("-")[0],
        compute=hardware_precisions(flags),
        features=tuple(one for one in _FEATURES if one in flags),
        caveats=caveats(flags),
        adapters=True,
        arriving=True,
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
