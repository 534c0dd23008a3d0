"""Which of the two models of latency tells better what iterations of a model shape take here?

Both are asked about iterations that neither was made from, half of them mixed ones; the one that deviates less is used.
"""

import math
from collections.abc import Iterator
from statistics import fmean

import msgspec

from llmhostd.compute.interpolated import Interpolated
from llmhostd.compute.modules import Modules
from llmhostd.compute.profile_grid import GridPolicy
from llmhostd.domain.model import ModelShape
from llmhostd.domain.profile import CheckSample, LatencyModel, Profile

CHECKS = 12
"""Iterations by which the models are compared."""
CLEARLY = 0.8
"""Modules must be off by less than this share of what interpolation is: the checks are measurements, too, and of two
that are about as good by them, the one that keeps to the samples is better (chosen on 195 random loads, and so on 135
others)."""
_GOLDEN = 0.6180339887498949
"""Multiples of it, without their whole part, spread evenly however many there are."""


def check_loads(shape: ModelShape, policy: GridPolicy | None = None) -> tuple[CheckSample, ...]:
    """Lay out what to time: prefills, decodes and twice as many mixed iterations, between the points of the grids."""
    policy = policy or GridPolicy()
    longest = shape.architecture.max_context_tokens
    most_chunk = max(min(policy.most_chunk_tokens, longest // 2), 1)
    most_past = min(policy.most_past_tokens, longest - most_chunk)
    return tuple(_loads(most_chunk, most_past, policy))


def choose(profile: Profile) -> Profile:
    """Compare the models by the profile's checks, and say which is used and how far both are off."""
    if not profile.checks:
        return profile
    interpolated, modules = _error(Interpolated(profile), profile), _error(Modules(profile), profile)
    better = LatencyModel.MODULES if modules < CLEARLY * interpolated else LatencyModel.INTERPOLATION
    return msgspec.structs.replace(
        profile, latency_model=better, interpolation_error=interpolated, modules_error=modules
    )


def model_of(profile: Profile) -> Interpolated | Modules:
    """Make the model that a profile is used with. Raises OperatorError when its grids are not full."""
    interpolated = Interpolated(profile)
    return Modules(profile) if profile.latency_model is LatencyModel.MODULES else interpolated


def _error(model: Interpolated | Modules, profile: Profile) -> float:
    """Mean relative deviation."""
    return fmean(
        abs(model.seconds(one.prefill, one.batch, one.context_tokens) / one.seconds - 1.0) for one in profile.checks
    )


def _loads(most_chunk: int, most_past: int, policy: GridPolicy) -> Iterator[CheckSample]:
    for k in range(CHECKS):

        def between(least: int, most: int, salt: int, k: int = k) -> int:
            """Spread over the range, evenly on a logarithmic scale, differently for every salt."""
            least = min(least, most)
            share = ((k + 1) * (salt + 1) * _GOLDEN) % 1.0
            return max(round(least * math.exp(share * math.log(most / least))), 1)

        chunk = between(policy.least_chunk_tokens, most_chunk, 0)
        past = between(policy.least_context_tokens, max(most_past, 1), 1) if k % 3 and most_past > 0 else 0
        batch = between(1, policy.most_batch, 2)
        context = between(policy.least_context_tokens, max(most_past, 1), 3)
        if k % 4 == 0:
            yield CheckSample(prefill=((chunk, past),), batch=0, context_tokens=0, seconds=0.0)
        elif k % 4 == 1:
            yield CheckSample(prefill=(), batch=batch, context_tokens=context, seconds=0.0)
        else:
            yield CheckSample(prefill=((chunk, past),), batch=batch, context_tokens=context, seconds=0.0)
