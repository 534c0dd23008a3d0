"""How do published tables of prefill and decode times become full grids?

The tables say how long whole prompts take, and decode iterations by batch and mean context, but for corners that did
not fit into memory. A `Profile` is two full grids. What is missing is filled in so that no larger load is ever faster:

- prefill, chunk c after p computed tokens: T(p + c) - T(p) + T(1). The chunks of a prompt then add up to the whole
  prompt, and each but the first pays the fixed cost T(1) once more (the weights are read again). Never less than T(c).
- decode, a batch that a context's row lacks: on the line through the last two batches of that row, and never less than
  the shorter context at that batch.
"""

from itertools import pairwise
from pathlib import Path

import msgspec

from llmhostd.compute.interpolation import MonotoneGrid
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.ids import HardwareKey, ShapeKey
from llmhostd.domain.profile import DecodeSample, PrefillSample, Profile
from llmhostd.domain.words import Word


class DecodeRow(Word):
    """Decode times at one mean context."""

    context_tokens: int
    by_batch: tuple[tuple[int, float], ...]
    """(batch, milliseconds)."""


class PublishedProfile(Word):
    """One model on one kind of node, as measured by others. Milliseconds."""

    model: str
    device: str
    """`cpu` or `gpu`."""
    node: str
    prefill_ms: tuple[tuple[int, float], ...]
    """(prompt tokens, milliseconds)."""
    decode_ms: tuple[DecodeRow, ...]
    sllm_concurrency: int | None = None
    """Requests at once on an instance that has the node for itself (the baselines of §IX-A); None: not told."""
    sllm_share_concurrency: int | None = None
    """The same on half a node."""


class _File(Word):
    profiles: tuple[PublishedProfile, ...]


def read_published(path: Path) -> tuple[PublishedProfile, ...]:
    """Read a profiles file. Raises OperatorError naming the file and the field."""
    try:
        profiles = msgspec.json.decode(path.read_bytes(), type=_File).profiles
    except (OSError, msgspec.DecodeError) as error:
        raise OperatorError(f"profiles file {path} cannot be used: {error}") from error
    for number, profile in enumerate(profiles):
        if why := _fault(profile):
            raise OperatorError(f"profiles file {path}: profiles[{number}] ({profile.model} on {profile.node}): {why}")
    return profiles


def find(profiles: tuple[PublishedProfile, ...], model: str, node: str) -> PublishedProfile:
    """Find a model on a kind of node. Raises OperatorError saying which there are."""
    for profile in profiles:
        if (profile.model, profile.node) == (model, node):
            return profile
    nodes = ", ".join(sorted({each.node for each in profiles if each.model == model}))
    known = f"it was measured on: {nodes}" if nodes else f"models: {', '.join(sorted({p.model for p in profiles}))}"
    raise OperatorError(f"no profile of {model} on {node}; {known}")


def as_profile(
    published: PublishedProfile, shape_key: ShapeKey, hardware_key: HardwareKey, *, load_s: float, held_bytes: int
) -> Profile:
    """Make full grids. `held_bytes` are what an instance holds beside KV, from its load to its end."""
    return Profile(
        shape_key=shape_key,
        hardware_key=hardware_key,
        prefill=_prefill_grid(published),
        decode=_decode_grid(published),
        load_s=load_s,
        first_run_s=0.0,
        resident_bytes=held_bytes,
        warm_bytes=held_bytes,
    )


def _prefill_grid(published: PublishedProfile) -> tuple[PrefillSample, ...]:
    lengths = [tokens for tokens, _ in published.prefill_ms]
    whole = MonotoneGrid({(tokens, 0): ms / 1000 for tokens, ms in published.prefill_ms})
    fixed_s = whole.at(lengths[0], 0)
    samples: list[PrefillSample] = []
    for past in (0, *lengths):
        for chunk in lengths:
            seconds = whole.at(chunk, 0)
            if past:
                seconds = max(seconds, whole.at(past + chunk, 0) - whole.at(past, 0) + fixed_s)
            samples.append(PrefillSample(chunk_tokens=chunk, past_tokens=past, seconds=seconds))
    return tuple(samples)


def _decode_grid(published: PublishedProfile) -> tuple[DecodeSample, ...]:
    batches = sorted({batch for row in published.decode_ms for batch, _ in row.by_batch})
    shorter_s: dict[int, float] = {}
    samples: list[DecodeSample] = []
    for row in sorted(published.decode_ms, key=lambda row: row.context_tokens):
        along = MonotoneGrid({(batch, 0): ms / 1000 for batch, ms in row.by_batch})
        for batch in batches:
            shorter_s[batch] = max(along.at(batch, 0), shorter_s.get(batch, 0.0))
            samples.append(DecodeSample(batch=batch, context_tokens=row.context_tokens, seconds=shorter_s[batch]))
    return tuple(samples)


def _fault(profile: PublishedProfile) -> str:
    """Say which field of a profile cannot be used, and why; empty when all can."""
    if not profile.decode_ms:
        return "decode_ms is empty"
    tables = [("prefill_ms", profile.prefill_ms)]
    tables += [(f"decode_ms at {row.context_tokens} tokens", row.by_batch) for row in profile.decode_ms]
    for name, table in tables:
        if len(table) < 2:
            return f"{name} has {len(table)} samples; at least 2 are needed"
        if table[0][0] < 1 or any(one[0] >= other[0] for one, other in pairwise(table)):
            return f"{name} must begin at 1 or more and increase: {[at for at, _ in table]}"
        if bad := [ms for _, ms in table if not 0.0 < ms < float("inf")]:
            return f"{name} says {bad[0]} ms; a time is more than 0"
    return ""
