"""How fast is a model on a box that nobody measured?

A roofline: an iteration reads the weights once, computes two operations per parameter and token, and reads the keys and
values of every past. Good enough to plan with; measured profiles are better.
"""

from llmhostd.checkpoints.tensors import parameter_count
from llmhostd.compute.profile_grid import DecodePoint, PrefillPoint, grid_for
from llmhostd.domain.ids import HardwareKey
from llmhostd.domain.model import ModelShape
from llmhostd.domain.profile import DecodeSample, PrefillSample, Profile
from llmhostd.domain.words import Word


class Roofline(Word):
    """A machine in a few figures. The defaults are two cores with AMX."""

    memory_bytes_per_s: float = 22e9
    operations_per_s: float = 1.5e12
    iteration_overhead_s: float = 0.001
    load_overhead_s: float = 0.3
    """Building and compiling, whatever the size."""
    load_bytes_per_s: float = 3e9
    pack_bytes_per_s: float = 6e9
    """Packing weights in the first iteration."""
    warm_bytes: int = 20 << 20


def profile_on(roofline: Roofline, shape: ModelShape, hardware_key: HardwareKey) -> Profile:
    """Fill the grid that a node would measure."""
    parameters = parameter_count(shape.architecture)

    def seconds(tokens: int, past_tokens: int) -> float:
        read_s = (shape.weight_bytes + past_tokens * shape.kv_bytes_per_token) / roofline.memory_bytes_per_s
        compute_s = 2 * parameters * tokens / roofline.operations_per_s
        return roofline.iteration_overhead_s + max(read_s, compute_s) + min(read_s, compute_s) / 4

    grid = grid_for(shape)
    points = grid.points
    return Profile(
        shape_key=shape.key,
        hardware_key=hardware_key,
        prefill=tuple(
            PrefillSample(
                chunk_tokens=point.chunk_tokens,
                past_tokens=point.past_tokens,
                seconds=seconds(point.chunk_tokens, point.past_tokens),
            )
            for point in points
            if isinstance(point, PrefillPoint)
        ),
        decode=tuple(
            DecodeSample(
                batch=point.batch,
                context_tokens=point.context_tokens,
                seconds=seconds(point.batch, point.batch * point.context_tokens),
            )
            for point in points
            if isinstance(point, DecodePoint)
        ),
        load_s=roofline.load_overhead_s + shape.weight_bytes / roofline.load_bytes_per_s,
        first_run_s=shape.weight_bytes / roofline.pack_bytes_per_s,
        resident_bytes=int(shape.weight_bytes * 1.05),
        warm_bytes=roofline.warm_bytes,
    )
