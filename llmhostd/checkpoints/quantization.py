"""How is a quantised linear weight stored?

Our own weight-only formats, made once by `loader.quantize` and named in config.json under `quantization_config`.
A weight `NAME [n, k]` becomes `NAME.q`, `NAME.scale` and, for int4, `NAME.zp`:

- int8: symmetric, one f16 scale per output row: `q` i8 `[n, k]`, `scale` f16 `[n, 1]`.
- int4: asymmetric, one f16 scale and one u4 zero point per group of `group` inputs: `q` u8 `[n, k/2]` (two values per
  byte, the first in the low half), `scale` f16 `[n, k/group]`, `zp` u8 `[n * k/group / 2]`. The head is int8.
"""

from collections.abc import Mapping
from typing import Any

from llmhostd.checkpoints.fields import ConfigFields
from llmhostd.domain.model import WeightFormat
from llmhostd.domain.words import Word

METHOD = "llmhostd"
"""`quantization_config.quant_method` of a checkpoint that we quantised."""

GROUPS = (128, 64, 32)
"""Group sizes of int4, preferred first."""


class Quantization(Word):
    """How the linear layers of one checkpoint are stored."""

    format: WeightFormat
    """`int8` or `int4`."""
    group: int = 0
    """Inputs per scale and zero point (int4); 0: one scale per output row (int8)."""


def parse_quantization(config: Mapping[str, Any], where: str = "config.json") -> Quantization | None:
    """Read `quantization_config` of a config.json; None: the weights are plain floats.

    Raises CheckpointError for methods other than our own.
    """
    section = ConfigFields(config, where).section("quantization_config")
    if section is None:
        return None
    method = section.text("quant_method", "")
    if method != METHOD:
        raise section.wrong(
            "quant_method",
            f"is {method!r}; only {METHOD!r} is read: add the unquantised model with --quantize instead",
        )
    kind = section.text("format", "")
    if kind == WeightFormat.INT8:
        return Quantization(format=WeightFormat.INT8)
    if kind != WeightFormat.INT4:
        raise section.wrong("format", f"is {kind!r}; known: 'int8', 'int4'")
    group = section.positive_int("group")
    if group not in GROUPS:
        raise section.wrong("group", f"is {group}; known: {', '.join(map(str, GROUPS))}")
    return Quantization(format=WeightFormat.INT4, group=group)


def quantization_config(quantization: Quantization) -> dict[str, str | int]:
    """Write what `parse_quantization` reads."""
    return {"quant_method": METHOD, "format": str(quantization.format), "group": quantization.group}
