"""What do the callers of a simulated box see?"""

from collections.abc import Sequence
from dataclasses import dataclass

from llmhostd.domain.actions import Refusal, RefuseRequest
from llmhostd.domain.commands import SubmitRequest
from llmhostd.domain.ids import RequestId
from llmhostd.domain.reports import IterationReported
from llmhostd.simulator.report import Observation
from llmhostd.simulator.workload import SimulatedRequest

FINAL = (Refusal.TOO_LARGE, Refusal.MODEL_BROKEN)
"""No use to ask again."""


class StreamError(AssertionError):
    """A caller got a token twice, or one is missing: ours to fix."""


@dataclass(frozen=True, slots=True)
class AskAgain:
    """What callers do who are refused although they could still be served in time."""

    every_s: float = 0.0
    """They ask again this often, until their first token would be late; 0: they go."""


class Callers:
    """Everybody who asks, and what they have heard so far."""

    def __init__(self, requests: Sequence[SimulatedRequest], ask_again: AskAgain) -> None:
        self._ask_again = ask_again
        self.observations = {one.shape.id: Observation(one) for one in requests}
        self.waiting = len(requests)
        """Those who have not asked yet, or have no answer yet."""
        self.moves = 0

    def submitted(self, action: SubmitRequest) -> None:
        """Note a cold start's grace, and a move. Raises StreamError when a move lost or doubled a token."""
        observation = self.observations[action.request.id]
        if not action.request.tokens_out:
            observation.grace_s = action.request.grace_s
        observation.submissions += 1
        observation.told = (action.node_id, action.instance_id)
        self.moves += observation.submissions > 1
        if action.request.tokens_out != len(observation.token_s):
            streamed = len(observation.token_s)
            raise StreamError(f"{action.request.id} moved with {action.request.tokens_out} of {streamed} tokens")

    def refused(self, action: RefuseRequest, now: float) -> float | None:
        """Hear a refusal; says when to ask again, None: never."""
        observation = self.observations[action.request_id]
        if observation.answered:
            return None
        shape, again_s = observation.asked.shape, now + self._ask_again.every_s
        late_s = shape.arrived_s + shape.slo.ttft_s
        if observation.token_s:
            late_s += observation.grace_s + shape.slo.tpot_s * len(observation.token_s)
        if again_s > now and action.refusal not in FINAL and again_s <= late_s:
            return again_s
        observation.refused, observation.because = action.refusal, action.because
        self.waiting -= 1
        return None

    def streamed(self, report: IterationReported, now: float) -> None:
        """Hear tokens. Raises StreamError unless each is the next one."""
        for row in report.rows:
            observation = self.observations[row.request_id]
            if observation.answered or observation.told != (report.node_id, report.instance_id):
                continue
            for token in row.tokens:
                if token != len(observation.token_s):
                    raise StreamError(f"{row.request_id} got token {token} after {len(observation.token_s)} tokens")
                observation.token_s.append(now)
            if row.finish and len(observation.token_s) >= observation.asked.said_tokens:
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
