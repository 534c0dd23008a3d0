"""Drive a runner as a node would, without a mind: plans that always fit."""

from collections.abc import Iterable, Mapping

from llmhostd.domain.ids import RequestId
from llmhostd.domain.node_events import RowPlan
from llmhostd.domain.reports import RowReport
from llmhostd.domain.request import Sampling
from llmhostd.engines.runner import Runner
from llmhostd.loader.adapter import AdapterWeights


class Driver:
    """Counts what is pending of each request, as the node mind does from what it is told."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.pending: dict[RequestId, int] = {}
        self.length: dict[RequestId, int] = {}
        self.outputs: dict[RequestId, list[int]] = {}
        self.reports: dict[RequestId, list[RowReport]] = {}

    def submit(
        self,
        name: str,
        context: list[int],
        sampling: Sampling,
        tokens_out: int = 0,
        adapter: AdapterWeights | None = None,
    ) -> int:
        request_id = RequestId(name)
        cached = self.runner.submit(request_id, context, sampling, tokens_out, adapter)
        self.pending[request_id] = len(context) - cached
        self.length[request_id] = len(context)
        self.outputs[request_id] = []
        self.reports[request_id] = []
        return cached

    def drop(self, name: str) -> None:
        self.runner.drop(RequestId(name))
        del self.pending[RequestId(name)]

    def step(self, chunks: Mapping[str, int]) -> None:
        """One iteration with at most so many tokens of each of these requests."""
        rows = []
        for name, chunk in chunks.items():
            request_id = RequestId(name)
            tokens = min(chunk, self.pending[request_id])
            rows.append(RowPlan(request_id=request_id, tokens=tokens, sample=tokens == self.pending[request_id]))
        for row, report in zip(rows, self.runner.run(rows), strict=True):
            assert report.request_id == row.request_id
            assert report.prefilled == row.tokens + report.cached
            assert len(report.tokens) == row.sample
            self.pending[row.request_id] += len(report.tokens) - row.tokens
            self.outputs[row.request_id] += report.tokens
            self.reports[row.request_id].append(report)
            if report.finish is not None:
                del self.pending[row.request_id]
        self.runner.check()

    def match_again(self) -> list[tuple[str, int]]:
        matched = self.runner.match_again()
        for request_id, computed in matched:
            self.pending[request_id] = self.length[request_id] - computed
        return matched

    def finish(self, names: Iterable[str] | None = None, chunk: int = 10**6) -> None:
        """All of them together until they end."""
        chosen = list(self.pending if names is None else names)
        while live := [name for name in chosen if name in self.pending]:
            self.step(dict.fromkeys(live, chunk))


def alone(runner: Runner, context: list[int], sampling: Sampling, tokens_out: int = 0) -> list[int]:
    """What one request yields with nobody beside it, prompt at once."""
    driver = Driver(runner)
    driver.submit("alone", context, sampling, tokens_out)
    driver.finish()
    return driver.outputs[RequestId("alone")]
