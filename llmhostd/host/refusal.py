"""What is a caller told who cannot be served in time, and when should it ask again?"""

from dataclasses import dataclass

from llmhostd.domain.actions import Refusal, RefuseRequest
from llmhostd.domain.request import RequestShape
from llmhostd.host.offers import Offer
from llmhostd.host.request import Hope
from llmhostd.host.routing import Answer


@dataclass(frozen=True, slots=True)
class RefusalPolicy:
    """Bounds of Retry-After."""

    least_retry_s: float = 0.5
    """Never ask a caller to come back sooner."""
    most_retry_s: float = 60.0
    """Never send a caller away for longer."""
    no_memory_retry_s: float = 2.0
    """When memory is held by those who run, and nobody knows when they end."""
    drained_retry_s: float = 2.0
    """While every node is being drained, and nobody knows when one is given back."""
    most_start_s: float = 60.0
    """Whoever would wait longer than this for a model to be loaded is refused, and told when to ask again; it is loaded
    meanwhile."""

    def bounded_s(self, retry_s: float) -> float:
        """Keep Retry-After within its bounds."""
        return min(max(retry_s, self.least_retry_s), self.most_retry_s)


def refuse(request: RequestShape, refusal: Refusal, because: str, retry_after_s: float) -> RefuseRequest:
    """Refuse without an estimate."""
    return RefuseRequest(
        request_id=request.id,
        refusal=refusal,
        retry_after_s=retry_after_s,
        expected_ttft_s=None,
        because=because,
    )


def starts_too_slowly(offer: Offer, request: RequestShape, now: float, policy: RefusalPolicy) -> RefuseRequest | None:
    """Refuse who would wait too long for a load; None: the wait can be borne."""
    instance = offer.instance
    wait_s = instance.load.ready_at_s - now
    if wait_s <= policy.most_start_s:
        return None
    return RefuseRequest(
        request_id=request.id,
        refusal=Refusal.OVERLOADED,
        retry_after_s=policy.bounded_s(wait_s),
        expected_ttft_s=offer.verdict.expected_ttft_s,
        because=f"{request.model} takes {wait_s:.0f} s to start on {instance.node_id}; it is loaded meanwhile",
    )


def _no_memory(
    answer: Answer, hope: Hope | None, request: RequestShape, now: float, policy: RefusalPolicy
) -> RefuseRequest:
    """Refuse who fits nowhere now."""
    if answer.yields_to is not None:
        because = f"memory is short, and goes to {answer.yields_to} first, which more people ask for"
    elif answer.short_bytes is None:
        because = "the nodes that are up are kept for somebody who waits for longer"
    else:
        short_mib = answer.short_bytes / 2**20
        because = f"{short_mib:.0f} MiB short on the nodes that are up, and nobody idle can give way"
    if hope is None:
        return refuse(request, Refusal.NO_MEMORY, because, policy.no_memory_retry_s)
    return RefuseRequest(
        request_id=request.id,
        refusal=Refusal.NO_MEMORY,
        retry_after_s=policy.bounded_s(hope.at_s - now),
        expected_ttft_s=hope.at_s - request.arrived_s,
        because=f"{because}; {hope.because}",
    )


def too_large(request: RequestShape, policy: RefusalPolicy, *, for_good: bool) -> RefuseRequest:
    """Refuse what this box could not even serve alone; `for_good`: nor could it ever."""
    what = f"{request.model} with {request.prompt_tokens} prompt tokens"
    if for_good:
        return refuse(request, Refusal.TOO_LARGE, f"{what} never fits into the memory of this box", 0.0)
    because = f"{what} does not fit into the memory that is left of this box; it had enough before"
    return refuse(request, Refusal.NO_MEMORY, because, policy.no_memory_retry_s)


def refuse_for(
    answer: Answer, hope: Hope | None, request: RequestShape, now: float, policy: RefusalPolicy
) -> RefuseRequest:
    """Refuse by what the search for an instance found: the nearest to success decides.

    `hope`: the soonest place that is to come, too late.
    """
    if not answer.rejected or answer.yields_to is not None:
        return _no_memory(answer, hope, request, now, policy)
    best = min(answer.rejected, key=lambda offer: offer.verdict.expected_ttft_s)
    late_s = best.verdict.expected_ttft_s - request.slo.ttft_s - best.request.shape.grace_s
    return RefuseRequest(
        request_id=request.id,
        refusal=Refusal.OVERLOADED,
        retry_after_s=policy.bounded_s(late_s),
        expected_ttft_s=best.verdict.expected_ttft_s,
        because=best.because,
    )
