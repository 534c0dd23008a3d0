"""What do registered models become under this configuration, bases and adapters together?

A base is loaded with room for the adapters that it has; an adapter is its base, with an own name and, if it has one, an
own promise.
"""

from collections.abc import Iterable

import msgspec

from llmhostd.checkpoints.adapter import room_for
from llmhostd.domain.ids import ModelName
from llmhostd.domain.model import AdapterSlots, LowRankAdapter, ModelSpec, Slo
from llmhostd.state.models import RegisteredModel, spec_of
from llmhostd.state.policy import AdapterPolicy, PrecisionPolicy, SloPolicy


def specs_of(
    registered: Iterable[RegisteredModel],
    slo: SloPolicy,
    precision: PrecisionPolicy,
    adapters: AdapterPolicy,
    *,
    bf16_hardware: bool,
) -> dict[ModelName, ModelSpec]:
    """Return what minds know, bases first; an adapter whose base is not there is left out.

    Raises OperatorError for a precision that does not exist.
    """
    models = list(registered)
    by_base: dict[ModelName, list[LowRankAdapter]] = {}
    for one in models:
        if one.adapter is not None:
            by_base.setdefault(one.adapter.base, []).append(one.adapter)
    specs: dict[ModelName, ModelSpec] = {}
    for one in models:
        if one.adapter is None:
            spec = spec_of(one, slo, precision, bf16_hardware=bf16_hardware)
            room = room_for(by_base.get(one.name, ()), spec.shape, adapters.slots)
            specs[one.name] = _with_room(spec, room) if room else spec
    for one in models:
        base = specs.get(one.adapter.base) if one.adapter is not None else None
        if base is not None and base.adapter is None:
            specs[one.name] = _adapter_spec(one, base)
    return specs


def _with_room(spec: ModelSpec, room: AdapterSlots) -> ModelSpec:
    return msgspec.structs.replace(spec, shape=msgspec.structs.replace(spec.shape, adapters=room))


def _adapter_spec(model: RegisteredModel, base: ModelSpec) -> ModelSpec:
    promise = Slo(
        ttft_s=base.slo.ttft_s if model.ttft_s is None else model.ttft_s,
        tpot_s=base.slo.tpot_s if model.tpot_s is None else model.tpot_s,
    )
    return ModelSpec(name=model.name, shape=base.shape, slo=promise, adapter=model.adapter)
