"""What happened to one request? Seconds from the start of the run."""

from enum import StrEnum
from itertools import pairwise

from llmhostd.bench.schedule import PlannedRequest
from llmhostd.domain.words import Word


class Outcome(StrEnum):
    """How a request ended."""

    COMPLETED = "completed"
    REFUSED = "refused"
    """The server said at once that it cannot: 429 or 503."""
    ERROR = "error"
    """Any other status, or no connection."""
    LOST = "lost"
    """Sent, but not answered to the end: cut off, failed in the stream or timed out."""


class Record(Word):
    """One request, as its caller saw it."""

    planned: PlannedRequest
    outcome: Outcome
    sent_s: float
    """When the generator got to it; behind `planned.due_s` by the generator's own lag."""
    end_s: float
    status: int | None
    token_times_s: tuple[float, ...] = ()
    """When each event with text was read."""
    prompt_tokens: int | None = None
    """The server's count, if it gave one."""
    completion_tokens: int | None = None
    """The server's count, if it gave one."""
    finish: str | None = None
    retry_after_s: float | None = None
    error: str = ""

    @property
    def tokens_out(self) -> int:
        """Output tokens: the server's count, or else the events (a server may put several tokens in one)."""
        return len(self.token_times_s) if self.completion_tokens is None else self.completion_tokens

    @property
    def ttft_s(self) -> float:
        """From when the request was due, so that a late generator flatters nobody. No text at all: to the end."""
        return (self.token_times_s[0] if self.token_times_s else self.end_s) - self.planned.due_s

    @property
    def tpot_s(self) -> float:
        """Mean time per output token after the first; 0 for a single token."""
        if self.tokens_out < 2 or len(self.token_times_s) < 2:
            return 0.0
        return (self.token_times_s[-1] - self.token_times_s[0]) / (self.tokens_out - 1)

    @property
    def e2e_s(self) -> float:
        """From due to the end of the answer, or of the refusal."""
        return self.end_s - self.planned.due_s

    @property
    def longest_gap_s(self) -> float:
        """Longest silence between two events with text."""
        return max((after - before for before, after in pairwise(self.token_times_s)), default=0.0)

    @property
    def lag_s(self) -> float:
        """How late the generator itself was."""
        return self.sent_s - self.planned.due_s
