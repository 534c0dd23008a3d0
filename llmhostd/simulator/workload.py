"""Who asks for what in a simulation?

The schedule is that of `bench`, so that a simulated and a measured run can be of the same load. Here it becomes
requests as the minds see them; how long each answer will really be, they do not see.
"""

from collections.abc import Sequence

from llmhostd.bench.schedule import PlannedRequest
from llmhostd.domain.ids import ModelName, RequestId
from llmhostd.domain.model import ModelSpec
from llmhostd.domain.request import RequestShape, Tier
from llmhostd.domain.words import Word
from llmhostd.simulator.chance import Chance


class SimulatedRequest(Word):
    """A request, and what only the model knows."""

    shape: RequestShape
    output_tokens: int

    @property
    def said_tokens(self) -> int:
        """How long its answer is: callers may have asked for less than the model would say."""
        return min(self.output_tokens, self.shape.max_tokens)


def requests_of(
    planned: Sequence[PlannedRequest], models: Sequence[ModelSpec], *, chance: Chance, best_effort_share: float = 0.0
) -> list[SimulatedRequest]:
    """Turn a schedule into requests, cut to the context of their model.

    Callers ask for at most the power of two above what they will get: how long an answer is, nobody knows before.
    """
    specs = {spec.name: spec for spec in models}
    requests: list[SimulatedRequest] = []
    for number, one in enumerate(planned):
        spec = specs[ModelName(one.model)]
        most = spec.shape.architecture.max_context_tokens
        prompt_tokens = min(one.input_tokens, most - 1)
        output_tokens = min(one.output_tokens, most - prompt_tokens)
        shape = RequestShape(
            id=RequestId(f"req-{number}"),
            model=spec.name,
            prompt_tokens=prompt_tokens,
            max_tokens=min(1 << output_tokens.bit_length(), most - prompt_tokens),
            tier=Tier.BEST_EFFORT if chance.happens(best_effort_share) else Tier.LATENCY_SENSITIVE,
            slo=spec.slo,
            arrived_s=one.due_s,
        )
        requests.append(SimulatedRequest(shape=shape, output_tokens=output_tokens))
    return requests
