"""How long will iterations of a model take that was never measured here, going by others that were?

A roofline: an iteration reads the weights once, computes each token, and reads what attention looks back at. How fast
this hardware does each is learned from profiles of other shapes; the estimate errs to the slow side, so that what is
promised on it holds. It serves until the model is measured, and is corrected by what iterations take meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from llmhostd.compute.least_squares import fit
from llmhostd.compute.profile_grid import DecodePoint, PrefillPoint, grid_for
from llmhostd.domain.ids import HardwareKey
from llmhostd.domain.model import Architecture, ModelShape
from llmhostd.domain.profile import DecodeSample, PrefillSample, Profile

Known = tuple[ModelShape, Profile]
"""A shape, and what was measured of it on the hardware in question."""


@dataclass(frozen=True, slots=True)
class PriorPolicy:
    """Whether a model is served before it was measured."""

    serve_unmeasured: bool = True
    """Serve a model that was never measured on this hardware at once, on an estimate from others that were, and measure
    it when nobody waits. False: its first callers wait until a coarse profile is measured."""
    pessimism: float = 1.3
    """The estimate says this many times what others of its kind would suggest."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What some hardware does, in seconds."""

    iteration_s: float
    """Each iteration, whatever it computes."""
    weight_byte_s: float
    """Reading a byte of weights."""
    multiply_s: float
    """Multiplying a token with one element of a weight matrix."""
    attended_s: float
    """One element of a query with one token of its past, in a prefill."""
    kv_byte_s: float
    """Reading a byte of keys and values, in a decode."""


def estimate(
    shape: ModelShape, hardware_key: HardwareKey, known: Sequence[Known], policy: PriorPolicy
) -> Profile | None:
    """Estimate the profile of a shape from those of others on the same hardware; None when there are none.

    Those of the same weight format and precision count, if there are any.
    """
    alike = [one for one in known if (one[0].weights, one[0].compute) == (shape.weights, shape.compute)]
    known = alike or known
    if not known:
        return None
    speed, slower = learn(known), policy.pessimism
    multiplies = matrix_elements(shape.architecture) * speed.multiply_s
    attended = query_elements(shape.architecture) * speed.attended_s
    step_s = speed.iteration_s + shape.weight_bytes * speed.weight_byte_s

    def prefill_s(tokens: int, past: int) -> float:
        pairs = tokens * past + tokens * (tokens + 1) // 2
        return (step_s + tokens * multiplies + pairs * attended) * slower

    def decode_s(batch: int, context: int) -> float:
        read_s = batch * context * shape.kv_bytes_per_token * speed.kv_byte_s
        return (step_s + batch * multiplies + read_s) * slower

    padding = max((profile for _, profile in known), key=lambda one: (one.token_step, one.token_counts))
    grid = grid_for(shape)
    points = grid.points
    chunks = [(one.chunk_tokens, one.past_tokens) for one in points if isinstance(one, PrefillPoint)]
    batches = [(one.batch, one.context_tokens) for one in points if isinstance(one, DecodePoint)]
    return Profile(
        shape_key=shape.key,
        hardware_key=hardware_key,
        prefill=tuple(PrefillSample(chunk_tokens=c, past_tokens=p, seconds=prefill_s(c, p)) for c, p in chunks),
        decode=tuple(DecodeSample(batch=b, context_tokens=c, seconds=decode_s(b, c)) for b, c in batches),
        load_s=slower * max(_grown(profile.load_s, other, shape) for other, profile in known),
        first_run_s=slower * max(_grown(profile.first_run_s, other, shape) for other, profile in known),
        resident_bytes=max(_held(other, profile, shape) for other, profile in known),
        warm_bytes=max(profile.warm_bytes - other.adapter_bytes for other, profile in known) + shape.adapter_bytes,
        token_step=padding.token_step,
        token_counts=padding.token_counts,
        measured=False,
    )


def learn(known: Sequence[Known]) -> Speed:
    """Learn how fast some hardware is from what was measured on it, at least one profile; no part is flattered."""
    singles = [
        (shape, min(profile.decode, key=lambda one: (one.batch, one.context_tokens))) for shape, profile in known
    ]
    rows = [(1.0, float(shape.weight_bytes)) for shape, _ in singles]
    iteration_s, weight_byte_s = fit(
        rows, [one.seconds for _, one in singles], [1.0 / one.seconds for _, one in singles], least=(0.0, 0.0)
    )
    if weight_byte_s <= 0.0:  # one shape, or the smaller one is slower: then all of it goes by bytes
        iteration_s, weight_byte_s = 0.0, max(one.seconds / shape.weight_bytes for shape, one in singles)
    return Speed(
        iteration_s=iteration_s,
        weight_byte_s=weight_byte_s,
        multiply_s=max(_multiply_s(*one) for one in known),
        attended_s=max(_attended_s(*one) for one in known),
        kv_byte_s=max(_kv_byte_s(*one) for one in known),
    )


def matrix_elements(a: Architecture) -> int:
    """Elements of the matrices that every token is multiplied with."""
    attention = a.hidden * (a.heads + 2 * a.kv_heads) * a.head_dim + a.heads * a.head_dim * a.hidden
    return a.layers * (attention + 3 * a.hidden * a.intermediate) + a.vocab * a.hidden


def query_elements(a: Architecture) -> int:
    """Elements of a token's queries in all layers."""
    return a.layers * a.heads * a.head_dim


def _multiply_s(shape: ModelShape, profile: Profile) -> float:
    """From the largest chunk with nothing before it: what it takes beyond a single token, or all of it."""
    alone = [one for one in profile.prefill if not one.past_tokens]
    most, least = max(alone, key=lambda one: one.chunk_tokens), min(alone, key=lambda one: one.chunk_tokens)
    tokens, seconds = most.chunk_tokens, most.seconds
    if least.chunk_tokens < tokens and least.seconds < seconds:
        tokens, seconds = tokens - least.chunk_tokens, seconds - least.seconds
    return seconds / tokens / matrix_elements(shape.architecture)


def _attended_s(shape: ModelShape, profile: Profile) -> float:
    """From what the longest past adds to the largest chunk."""
    most = max(profile.prefill, key=lambda one: (one.chunk_tokens, one.past_tokens))
    alone = next(one for one in profile.prefill if one.chunk_tokens == most.chunk_tokens and not one.past_tokens)
    pairs = most.chunk_tokens * max(most.past_tokens, 1)
    return max(most.seconds - alone.seconds, 0.0) / pairs / query_elements(shape.architecture)


def _kv_byte_s(shape: ModelShape, profile: Profile) -> float:
    """From what the longest context adds to the largest batch."""
    most = max(profile.decode, key=lambda one: (one.batch, one.context_tokens))
    least = min((one for one in profile.decode if one.batch == most.batch), key=lambda one: one.context_tokens)
    read_bytes = most.batch * (most.context_tokens - least.context_tokens) * shape.kv_bytes_per_token
    return max(most.seconds - least.seconds, 0.0) / max(read_bytes, 1)


def _grown(seconds: float, other: ModelShape, shape: ModelShape) -> float:
    """What takes a larger checkpoint longer; a smaller one is not taken to be faster."""
    return seconds * max(shape.weight_bytes / other.weight_bytes, 1.0)


def _held(other: ModelShape, profile: Profile, shape: ModelShape) -> int:
    held_bytes = profile.resident_bytes - other.adapter_bytes
    return int(shape.weight_bytes * max(held_bytes / other.weight_bytes, 1.0)) + shape.adapter_bytes
