"""What is a node working on, as far as its timing goes?

The node mind keeps one of these of itself; the host mind keeps one per node, fed by reports, to play it forward in
shadow validation (SLINFER §VI-C). Both therefore plan with the same code over the same picture. Mutable on purpose: it
is the state that the minds step.
"""

from dataclasses import dataclass, field, replace

from llmhostd.compute.estimator import Estimator
from llmhostd.domain.ids import InstanceId, RequestId
from llmhostd.domain.request import RequestShape, Tier


@dataclass(slots=True)
class RequestLoad:
    """One request's progress. Tokens and seconds."""

    shape: RequestShape
    computed_tokens: int = 0
    """Context tokens whose KV exists, cached prefix included."""
    tokens_out: int = 0
    """Output tokens ever streamed, counting those from before a move."""

    @property
    def context_tokens(self) -> int:
        """Tokens whose KV must exist before the next output token is drawn."""
        return self.shape.prompt_tokens + self.tokens_out

    @property
    def pending_tokens(self) -> int:
        """Context tokens still to compute; 1 while decoding (the token just drawn), more while prefilling."""
        return self.context_tokens - self.computed_tokens

    @property
    def decoding(self) -> bool:
        """Whether the next iteration that includes it yields a token by computing one token."""
        return self.pending_tokens == 1 and self.tokens_out > 0

    @property
    def latency_sensitive(self) -> bool:
        """Whether somebody waits for it."""
        return self.shape.tier is Tier.LATENCY_SENSITIVE

    def headroom_s(self, now: float) -> float:
        """How long the next token can wait: ST + TTFT_SLO + TPOT_SLO * O - CT (SLINFER eq. 1)."""
        slo = self.shape.slo
        return self.shape.arrived_s + slo.ttft_s + self.shape.grace_s + slo.tpot_s * self.tokens_out - now


@dataclass(slots=True)
class InstanceLoad:
    """One instance's requests, in order of submission, and what its iterations cost."""

    id: InstanceId
    estimator: Estimator
    ready_at_s: float = 0.0
    """When it can compute, if it is still loading (an estimate); in the past otherwise."""
    first_run_s: float = 0.0
    """What the next iteration costs on top: weight packing of a warm instance."""
    requests: dict[RequestId, RequestLoad] = field(default_factory=dict)


@dataclass(slots=True)
class NodeLoad:
    """All instances of a node, in order of loading. One iteration at a time computes."""

    busy_until_s: float = 0.0
    """When the running iteration is expected to end."""
    instances: dict[InstanceId, InstanceLoad] = field(default_factory=dict)

    def copy(self) -> "NodeLoad":
        """Copy what playing forward changes."""
        instances = {
            key: replace(one, requests={k: replace(r) for k, r in one.requests.items()})
            for key, one in self.instances.items()
        }
        return NodeLoad(self.busy_until_s, instances)
