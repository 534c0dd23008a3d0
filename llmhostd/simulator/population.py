"""Which models are hosted in an experiment, and who asks them for what?"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from llmhostd.bench.schedule import PlannedRequest
from llmhostd.bench.trace import Fallbacks, read_trace
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.ids import ModelName, RequestId
from llmhostd.domain.model import Architecture, ComputePrecision, KvPrecision, ModelShape, ModelSpec, Slo, WeightFormat
from llmhostd.domain.request import RequestShape, Tier
from llmhostd.simulator.assumptions import GIB, KIB, SIZES, Assumptions
from llmhostd.simulator.workload import SimulatedRequest

STRATA = 8
"""The paper's 128 functions are in 8 strata of alike popularity: `model_id % 8`. Two of them are its 32 models."""
MOST_MODEL_IDS = 1 << 16


def read_population(
    trace: Path, models: int | None, mix: Sequence[tuple[str, int]], assumptions: Assumptions
) -> tuple[tuple[ModelSpec, ...], list[SimulatedRequest]]:
    """Read a trace, keep `models` of its models (None: all), and give each a size from `mix`, in proportion.

    Raises OperatorError naming the file, and what is wrong in it or how many models it has.
    """
    planned = read_trace(trace, [str(n) for n in range(MOST_MODEL_IDS)], _no_fallbacks(trace))
    kept = _kept({one.model: None for one in planned}, models, trace)
    specs: dict[str, ModelSpec] = {}
    for name, size in zip(kept, _sizes(mix), strict=False):
        specs[name] = _spec(name, size, assumptions)
    asked = [one for one in planned if one.model in specs]
    requests = [_request(number, one, specs[one.model], assumptions) for number, one in enumerate(asked)]
    return tuple(specs.values()), requests


def stratum(ids: Sequence[int], models: int) -> list[int]:
    """Choose `models` of the model ids 0 <= id < n so that all popularities are met alike.

    Whole strata (`id % 8 < 8 * models / n`) where that is a whole number, as the paper's sets of 32 and 64 are; else
    evenly spaced ids.
    """
    n = max(ids, default=-1) + 1
    if models * STRATA % n == 0:
        return [each for each in ids if each % STRATA < models * STRATA // n]
    return [each for each in ids if (each + 1) * models // n > each * models // n]


def shape_of(size: str) -> ModelShape:
    """Make the shape of one of SIZES."""
    one = SIZES[size]
    architecture = Architecture(
        family="llama", layers=one.layers, hidden=one.hidden, heads=one.heads, kv_heads=one.kv_heads,
        head_dim=one.hidden // one.heads, intermediate=one.intermediate, vocab=one.vocab,
        max_context_tokens=one.max_context_tokens, norm_eps=1e-5, rope_theta=10_000.0,
    )  # fmt: skip
    return ModelShape(
        architecture=architecture,
        weights=WeightFormat.BF16,
        compute=ComputePrecision.BF16,
        kv=KvPrecision.BF16,
        weight_bytes=int(one.weight_gib * GIB),
        kv_bytes_per_token=one.kv_kib_per_token * KIB,
    )


def _kept(names: dict[str, None], models: int | None, trace: Path) -> list[str]:
    if not names:
        raise OperatorError(f"trace {trace} has no requests")
    if models is not None and models > len(names):
        raise OperatorError(f"trace {trace} has {len(names)} models, not {models}")
    numbered = all(name.isdecimal() for name in names)
    ids = {int(name) if numbered else position: name for position, name in enumerate(names)}
    chosen = sorted(ids) if models in (None, len(ids)) else stratum(sorted(ids), models or 0)
    return [ids[each] for each in chosen]


def _sizes(mix: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Sizes without end, in proportion and well mixed: always the one that is furthest behind its share."""
    given = dict.fromkeys((size for size, _ in mix), 0)
    while True:
        size = min((size for size, weight in mix if weight), key=lambda one: (given[one] + 0.5) / dict(mix)[one])
        given[size] += 1
        yield size


def _spec(name: str, size: str, assumptions: Assumptions) -> ModelSpec:
    slo = Slo(ttft_s=assumptions.ttft_most_s, tpot_s=assumptions.tpot_s)
    return ModelSpec(name=ModelName(f"{size}-{name}"), shape=shape_of(size), slo=slo)


def _request(number: int, one: PlannedRequest, spec: ModelSpec, assumptions: Assumptions) -> SimulatedRequest:
    """What is longer than the model's context is cut to it. How long the answer will be, callers do not know."""
    most = spec.shape.architecture.max_context_tokens
    prompt_tokens = min(one.input_tokens, most - 1)
    shape = RequestShape(
        id=RequestId(f"req-{number}"),
        model=spec.name,
        prompt_tokens=prompt_tokens,
        max_tokens=most - prompt_tokens,
        tier=Tier.LATENCY_SENSITIVE,
        slo=Slo(ttft_s=assumptions.ttft_s(prompt_tokens), tpot_s=assumptions.tpot_s),
        arrived_s=one.due_s,
    )
    return SimulatedRequest(shape=shape, output_tokens=min(one.output_tokens, most - prompt_tokens))


def _no_fallbacks(trace: Path) -> Fallbacks:
    return Fallbacks(_missing(trace, "model_id"), _missing(trace, "input_tokens"), _missing(trace, "output_tokens"))


def _missing(trace: Path, column: str) -> Iterator[Any]:
    raise OperatorError(f"trace {trace} does not say {column} of every request")
    yield
