"""How many came, how did they end, and were the promises kept?"""

from llmhostd.api.metrics import RequestMetrics
from llmhostd.daemon.live import LiveRequest
from llmhostd.domain.ids import ModelName
from llmhostd.domain.request import FinishReason, Tier
from llmhostd.state.usage import Usage, UsageBook


class Tally:
    """Counts requests once each, at their end: for Prometheus, the usage table and `GET /api/v1/host`."""

    def __init__(self, metrics: RequestMetrics, book: UsageBook) -> None:
        self.requests = 0
        self.refused = 0
        self.failed = 0
        self.finished = 0
        self.slo_met = 0
        self.slo_missed = 0
        self.tokens_out = 0
        self._metrics = metrics
        self._book = book

    def arrived(self) -> None:
        """Count a request that asks for a model that is known."""
        self.requests += 1

    def turned_away(self, model: ModelName, reason: str) -> None:
        """Count a refusal."""
        self.refused += 1
        self._metrics.refused(model, reason)
        self._book.count(model, Usage(requests=1, refused=1))

    def broke(self, request: LiveRequest) -> None:
        """Count a request that an engine failed at."""
        self.failed += 1
        self._ended(request, "failed", Usage(requests=1, failed=1))

    def ended(self, request: LiveRequest, finish: FinishReason) -> None:
        """Count a request that ran to its end, or that nobody waited for any more."""
        if finish is not FinishReason.CANCELLED:
            self.finished += 1
            if request.shape.tier is Tier.LATENCY_SENSITIVE:
                self.slo_met += request.met_its_slo
                self.slo_missed += not request.met_its_slo
        self._ended(request, finish.value, Usage(requests=1))

    def _ended(self, request: LiveRequest, outcome: str, usage: Usage) -> None:
        model, arrived_s = request.shape.model, request.shape.arrived_s
        prompt, cached, output = len(request.prompt), request.cached_tokens, len(request.streamed)
        self.tokens_out += output
        self._metrics.ended(model, outcome)
        self._metrics.tokens(model, prompt=prompt, cached=cached, output=output)
        self._metrics.times(
            model,
            queue_s=None if request.first_run_s is None else max(0.0, request.first_run_s - arrived_s),
            ttft_s=None if request.first_token_s is None else request.first_token_s - arrived_s,
            tpot_s=request.tpot_s,
        )
        self._book.count(model, usage + Usage(prompt_tokens=prompt, cached_tokens=cached, output_tokens=output))
