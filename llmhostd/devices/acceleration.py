"""Can this CPU multiply matrices fast enough to serve people?

SLINFER excludes CPUs without matrix acceleration (§IV-A2, §V): a 32-core Xeon of the third generation needs 4.1 s for
the first token of a 7B model after 1K tokens. Two steps lie between such a CPU and one with AMX; here they are told
apart by the instruction sets that the kernel lists.
"""

from collections.abc import Collection
from enum import StrEnum

from llmhostd.domain.words import Word

TILES = {
    "amx_bf16": "AMX (bf16)", "amx_int8": "AMX (int8)", "amx_fp16": "AMX (fp16)",
    "sme": "SME", "i8mm": "I8MM (int8)", "bf16": "BF16 (bf16)",
}  # fmt: skip
"""Instructions that multiply a matrix by a matrix: AMX on x86, SME and the MMLA instructions on Arm."""

DOT_PRODUCTS = {
    "avx512_bf16": "AVX-512 BF16 (bf16)", "avx512_vnni": "AVX-512 VNNI (int8)", "avx_vnni": "AVX-VNNI (int8)",
    "asimddp": "SDOT/UDOT (int8)",
}  # fmt: skip
"""Instructions that multiply rows of small numbers by columns: two to four times what f32 vectors do."""


class MatrixAcceleration(StrEnum):
    """What a CPU must have to be a node."""

    TILES = "tiles"
    DOT_PRODUCTS = "dot-products"
    NONE = "none"


_ORDER = (MatrixAcceleration.NONE, MatrixAcceleration.DOT_PRODUCTS, MatrixAcceleration.TILES)


class Acceleration(Word):
    """What a CPU has."""

    level: MatrixAcceleration
    instructions: tuple[str, ...]
    """For a person, the most telling first."""


def acceleration_of(flags: Collection[str]) -> Acceleration:
    """Judge a CPU by its `flags` (x86) or `Features` (Arm) of /proc/cpuinfo."""
    tiles = [name for flag, name in TILES.items() if flag in flags]
    products = [name for flag, name in DOT_PRODUCTS.items() if flag in flags]
    level = MatrixAcceleration.NONE
    if tiles or products:
        level = MatrixAcceleration.TILES if tiles else MatrixAcceleration.DOT_PRODUCTS
    return Acceleration(level=level, instructions=(*tiles, *products))


def shortfall(found: Acceleration, required: MatrixAcceleration) -> str:
    """Say what a CPU lacks of what is required, and what it costs; empty if nothing."""
    if _ORDER.index(found.level) >= _ORDER.index(required):
        return ""
    has = ", ".join(found.instructions) or "neither matrix nor dot-product instructions"
    return (
        f"its CPU has {has}, and devices.require_matrix_acceleration asks for {required}: prefill is many times slower "
        "than on a CPU that has them"
    )
