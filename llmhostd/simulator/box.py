"""Which box is simulated: its nodes, models and profiles?"""

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

import msgspec

from llmhostd.checkpoints.kv_size import kv_bytes_per_token
from llmhostd.checkpoints.tensors import parameter_count
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import HardwareKey, ModelName, NodeId
from llmhostd.domain.model import Architecture, ComputePrecision, KvPrecision, ModelShape, ModelSpec, Slo, WeightFormat
from llmhostd.domain.profile import Profile
from llmhostd.domain.words import Word
from llmhostd.host.families import shape_on
from llmhostd.simulator.roofline import Roofline, profile_on

SIZES: dict[str, tuple[int, int, int, int, int, int]] = {
    "160m": (12, 768, 12, 4, 2048, 32000),
    "500m": (24, 896, 14, 2, 4864, 151936),
    "1b": (22, 2048, 32, 4, 5632, 32000),
}
"""Layers, hidden, heads, KV heads, intermediate, vocabulary."""


class Box(Word):
    """Everything that a simulation needs to know of a box. Also the JSON of a box file."""

    nodes: tuple[NodeSpec, ...]
    models: tuple[ModelSpec, ...]
    profiles: tuple[Profile, ...]
    """What iterations really take. A pair of shape and hardware without one is filled in by the roofline."""


def make_box(
    *,
    models: int,
    sizes: Sequence[str] = ("160m",),
    nodes: int = 1,
    memory_bytes: int = 16 << 30,
    slo: Slo | None = None,
) -> Box:
    """Make a box with alike nodes and bf16 models `model-0`, `model-1`, ... of these sizes in turn.

    Raises OperatorError for a size that is not in SIZES.
    """
    unknown = [size for size in sizes if size not in SIZES]
    if unknown or not sizes:
        raise OperatorError(f"no model size {', '.join(unknown) or 'is given'}; there are: {', '.join(SIZES)}")
    shapes = {size: _shape(*SIZES[size]) for size in sizes}
    specs = [
        NodeSpec(
            id=NodeId(f"cpu{n}"),
            engine="profiled",
            hardware_key=HardwareKey("roofline"),
            cores=(2 * n, 2 * n + 1),
            memory_bytes=memory_bytes,
        )
        for n in range(nodes)
    ]
    named = [
        ModelSpec(name=ModelName(f"model-{n}"), shape=shapes[size], slo=slo or Slo(ttft_s=2.0, tpot_s=0.2))
        for n, size in enumerate(islice(cycle(sizes), models))
    ]
    return Box(nodes=tuple(specs), models=tuple(named), profiles=())


def read_box(path: Path) -> Box:
    """Read a box file: JSON with `nodes`, `models` and `profiles`, spelt as the admin API spells them.

    Raises OperatorError naming the file and the field.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Box)
    except (OSError, msgspec.DecodeError) as error:
        raise OperatorError(f"box file {path} cannot be used: {error}") from error


def complete(box: Box, roofline: Roofline) -> Box:
    """Add a profile for every pair of a model's shape and a node's hardware that has none."""
    known = {(profile.shape_key, profile.hardware_key): profile for profile in box.profiles}
    for model in box.models:
        for node in box.nodes:
            shape = shape_on(node, model)
            key = (shape.key, node.hardware_key)
            if key not in known:
                known[key] = profile_on(roofline, shape, node.hardware_key)
    return msgspec.structs.replace(box, profiles=tuple(known.values()))


def _shape(layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, vocab: int) -> ModelShape:
    architecture = Architecture(
        family="llama",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate=intermediate,
        vocab=vocab,
        max_context_tokens=8192,
        norm_eps=1e-5,
        rope_theta=10_000.0,
        tied_embeddings=True,
    )
    return ModelShape(
        architecture=architecture,
        weights=WeightFormat.BF16,
        compute=ComputePrecision.BF16,
        kv=KvPrecision.U8,
        weight_bytes=2 * parameter_count(architecture),
        kv_bytes_per_token=kv_bytes_per_token(architecture, KvPrecision.U8),
    )
