"""What does Prometheus scrape? Counted per request at its end, never per token; gauges are read when asked."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from llmhostd.api.service import Service
from llmhostd.domain.ids import ModelName

CONTENT_TYPE = CONTENT_TYPE_LATEST

_TTFT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 60.0)
_TPOT_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)


class RequestMetrics:
    """Counters and histograms of requests, by model."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # twice the lines, for what nobody asks
        self.registry = CollectorRegistry()
        self._ended = Counter(
            "llmhostd_requests", "Requests by how they ended.", ["model", "outcome"], registry=self.registry
        )
        self._refused = Counter(
            "llmhostd_refused", "Requests refused, by reason.", ["model", "reason"], registry=self.registry
        )
        self._tokens = Counter(
            "llmhostd_tokens", "Tokens: `prompt`, `cached` (of the prompt) and `output`.", ["model", "kind"],
            registry=self.registry,
        )  # fmt: skip
        self._ttft_s = Histogram(
            "llmhostd_ttft_seconds", "Time to first token.", ["model"], buckets=_TTFT_S, registry=self.registry
        )
        self._tpot_s = Histogram(
            "llmhostd_tpot_seconds", "Mean time per output token after the first.", ["model"], buckets=_TPOT_S,
            registry=self.registry,
        )  # fmt: skip
        self._queue_s = Histogram(
            "llmhostd_queue_seconds", "Arrival to the first chunk that was computed.", ["model"], buckets=_TTFT_S,
            registry=self.registry,
        )  # fmt: skip

    def ended(self, model: ModelName, outcome: str) -> None:
        """Count a request that ended as `stop`, `length`, `cancelled`, `failed` or `refused`."""
        self._ended.labels(model, outcome).inc()

    def refused(self, model: ModelName, reason: str) -> None:
        """Count a refusal."""
        self._refused.labels(model, reason).inc()
        self.ended(model, "refused")

    def tokens(self, model: ModelName, *, prompt: int, cached: int, output: int) -> None:
        """Count what a request took and gave."""
        for kind, count in (("prompt", prompt), ("cached", cached), ("output", output)):
            self._tokens.labels(model, kind).inc(count)

    def times(self, model: ModelName, *, queue_s: float | None, ttft_s: float | None, tpot_s: float | None) -> None:
        """Observe a request's times, as far as it got."""
        for histogram, seconds in ((self._queue_s, queue_s), (self._ttft_s, ttft_s), (self._tpot_s, tpot_s)):
            if seconds is not None:
                histogram.labels(model).observe(seconds)


class BoxGauges(Collector):
    """Gauges made from snapshots when somebody scrapes."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """Yield one family per gauge."""
        nodes = self._service.nodes()
        yield _gauge("llmhostd_node_up", "Whether the node's worker answers.", ((n.id, n.up) for n in nodes))
        yield _gauge("llmhostd_node_busy", "Share of the last second it computed.", ((n.id, n.busy) for n in nodes))
        yield _gauge("llmhostd_node_restarts", "Worker restarts.", ((n.id, n.restarts) for n in nodes))
        yield _gauge("llmhostd_memory_bytes", "What a node may hold.", ((n.id, n.memory_bytes) for n in nodes))
        yield _gauge("llmhostd_node_draining", "Whether nothing new goes there.", ((n.id, n.draining) for n in nodes))
        yield _gauge("llmhostd_budget_bytes", "What a node's worker says it may hold now.",
                     ((n.id, n.budget_bytes) for n in nodes))  # fmt: skip
        yield _gauge("llmhostd_promised_bytes", "Once every decision is carried out.",
                     ((n.id, n.promised_bytes) for n in nodes))  # fmt: skip
        yield _gauge("llmhostd_held_bytes", "What instances may hold now.", ((n.id, n.held_bytes) for n in nodes))
        yield _gauge("llmhostd_used_bytes", "Of it: weights and KV in use.", ((n.id, n.used_bytes) for n in nodes))
        yield _gauge("llmhostd_kv_scaling_seconds", "Spent in resizing KV pools since its worker began.",
                     ((n.id, n.scaling_s) for n in nodes))  # fmt: skip
        yield _gauge("llmhostd_weights_bytes", "Held beside KV.", ((n.id, n.weights_bytes) for n in nodes))
        yield _gauge("llmhostd_kv_bytes", "KV pools.", ((n.id, n.kv_bytes) for n in nodes))
        yield _gauge("llmhostd_kv_used_bytes", "KV in use.", ((n.id, n.kv_used_bytes) for n in nodes))
        errors = ((n.id, n.start_error) for n in nodes if n.start_error is not None)
        yield _gauge("llmhostd_start_estimate_error", "Median error of the last ten estimates of start times, 0-1.",
                     errors)  # fmt: skip
        live = GaugeMetricFamily("llmhostd_live_requests", "Requests under way.", labels=["model", "phase"])
        counts: dict[tuple[str, str], int] = {}
        for one in self._service.requests():
            counts[one.model, one.phase] = counts.get((one.model, one.phase), 0) + 1
        for labels, count in counts.items():
            live.add_metric(labels, count)
        yield live
        states = GaugeMetricFamily("llmhostd_model_state", "1 for the state a model is in.", labels=["model", "state"])
        for model in self._service.models():
            states.add_metric([model.name, model.state.value], 1)
        yield states


def exposition(registry: CollectorRegistry) -> bytes:
    """Return Prometheus' text format."""
    return generate_latest(registry)


def _gauge(name: str, sentence: str, values: Iterable[tuple[str, float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, sentence, labels=["node"])
    for node, value in values:
        family.add_metric([node], float(value))
    return family
