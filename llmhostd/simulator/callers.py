"""What do the callers of a simulated box see?"""

from collections.abc import Sequence

from llmhostd.domain.actions import RefuseRequest
from llmhostd.domain.commands import SubmitRequest
from llmhostd.domain.ids import RequestId
from llmhostd.domain.reports import IterationReported
from llmhostd.simulator.report import Observation
from llmhostd.simulator.workload import SimulatedRequest


class StreamError(AssertionError):
    """A caller got a token twice, or one is missing: ours to fix."""


class Callers:
    """Everybody who asks, and what they have heard so far."""

    def __init__(self, requests: Sequence[SimulatedRequest]) -> None:
        self.observations = {one.shape.id: Observation(one) for one in requests}
        self.waiting = len(requests)
        """Those who have not asked yet, or have no answer yet."""
        self.moves = 0

    def submitted(self, action: SubmitRequest) -> None:
        """Note a cold start's grace, and a move. Raises StreamError when a move lost or doubled a token."""
        observation = self.observations[action.request.id]
        observation.grace_s = action.request.grace_s
        observation.submissions += 1
        self.moves += observation.submissions > 1
        if action.request.tokens_out != len(observation.token_s):
            streamed = len(observation.token_s)
            raise StreamError(f"{action.request.id} moved with {action.request.tokens_out} of {streamed} tokens")

    def refused(self, action: RefuseRequest) -> None:
        """Hear a refusal."""
        observation = self.observations[action.request_id]
        if not observation.answered:
            observation.refused, observation.because = action.refusal, action.because
            self.waiting -= 1

    def streamed(self, report: IterationReported, now: float) -> None:
        """Hear tokens. Raises StreamError unless each is the next one."""
        for row in report.rows:
            observation = self.observations[row.request_id]
            if observation.answered:
                continue
            for token in row.tokens:
                if token != len(observation.token_s):
                    raise StreamError(f"{row.request_id} got token {token} after {len(observation.token_s)} tokens")
                observation.token_s.append(now)
            if row.finish:
                observation.finish = row.finish
                self.waiting -= 1

    def leave(self, request_id: RequestId) -> bool:
        """Go away; False when the answer was there already."""
        observation = self.observations[request_id]
        if observation.answered:
            return False
        observation.left = True
        self.waiting -= 1
        return True
