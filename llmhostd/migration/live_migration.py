"""How does a request move while it goes on? (ServerlessLLM §5.3, §5.4.)

In rounds. The destination computes the context that it was sent while the source goes on decoding; each round sends
what was said meanwhile. Recomputing is much faster than saying, so the gap shrinks; once it is closed within a token or
two, the source is recalled, the rest is sent, and the stream goes on at the destination.

Nothing here is needed for the stream to stay exact. It is where it was until it is submitted elsewhere with all of its
tokens, as any request that moves; what was staged only makes that cheap. So whatever fails, the worst is work for
nothing, and the table says what becomes of it.
"""

from dataclasses import dataclass
from enum import StrEnum

from llmhostd.domain.ids import InstanceId


class Phase(StrEnum):
    """Where a migration is."""

    PREPARING = "preparing"
    """The destination loads, or waits for memory: nothing was sent (steps 1 and 2 of fig. 4)."""
    RECOMPUTING = "recomputing"
    """It computes what it was sent, round after round (steps 3 and 4)."""
    SWITCHED = "switched"
    """The stream goes on there (steps 5 to 7)."""
    ABANDONED = "abandoned"
    """The stream goes on where it was, or has ended; the destination drops what it has."""


class Trigger(StrEnum):
    """What moves it on."""

    READY = "destination ready"
    GAP_LARGE = "gap large"
    GAP_SMALL = "gap small"
    HURRIED = "source needed"
    """Somebody needs the source's place, and can wait no longer."""
    ENDED = "finished or cancelled"
    SOURCE_LOST = "source lost"
    DESTINATION_LOST = "destination lost"
    GIVEN_UP = "given up"
    """By the destination, which needs the memory, or by the host."""


TRANSITIONS: dict[tuple[Phase, Trigger], Phase] = {
    (Phase.PREPARING, Trigger.READY): Phase.RECOMPUTING,
    (Phase.RECOMPUTING, Trigger.GAP_LARGE): Phase.RECOMPUTING,
    (Phase.RECOMPUTING, Trigger.GAP_SMALL): Phase.SWITCHED,
    (Phase.RECOMPUTING, Trigger.SOURCE_LOST): Phase.SWITCHED,
    (Phase.RECOMPUTING, Trigger.HURRIED): Phase.SWITCHED,
    **{(Phase.PREPARING, why): Phase.ABANDONED for why in (Trigger.ENDED, Trigger.SOURCE_LOST)},
    (Phase.RECOMPUTING, Trigger.ENDED): Phase.ABANDONED,
    **{
        (phase, why): Phase.ABANDONED
        for why in (Trigger.DESTINATION_LOST, Trigger.GIVEN_UP)
        for phase in (Phase.PREPARING, Phase.RECOMPUTING)
    },
}
"""§5.4, whole. Whoever loses its source once its destination computes goes on there, with what it has computed: that is
less to compute again than anywhere else. The paper's scheduler lets the destination clear it."""


@dataclass(frozen=True, slots=True)
class MigrationPolicy:
    """How requests move that need not leave at once."""

    live: bool = True
    """A drain, a preemption and `llmhostd move` let a stream go on where it is until its destination has caught up.
    False: it leaves at once and its caller waits until its context is computed again."""
    close_in_tokens: float = 2.0
    """The stream switches once the destination can compute what it lacks in the time of so many of its tokens."""
    most_arriving: int = 4
    """Streams that one node is computed ahead for at once; others follow when these have arrived."""
    newcomer_waits: float = 0.5
    """A newcomer in whose favour others are preempted waits for their streams to move live for at most this share of
    the time that it can wait at all; where that is not enough, they leave at once."""
    slower_in_slack: float = 2.0
    """A context that is computed in what others leave of a device is taken to need this many times as long."""
    most_s: float = 60.0
    """A migration that has not come to its end after so long is given up."""


@dataclass(slots=True)
class Migration:
    """One request on its way. Tokens are of its context: prompt and outputs."""

    source: InstanceId
    destination: InstanceId
    because: str
    began_s: float
    phase: Phase = Phase.PREPARING
    sent_tokens: int = 0
    """What the destination was sent."""
    computed_tokens: int = 0
    """Whose keys and values it has."""
    rounds: int = 0
    round_tokens: int = 0
    """What the last round sent."""
    looked_at_tokens: int = -1
    """How much its stream had said when somebody last asked whether the gap is small."""

    def move(self, trigger: Trigger) -> Phase:
        """Go on in the table. Raises KeyError for what cannot happen."""
        self.phase = TRANSITIONS[self.phase, trigger]
        return self.phase

    def send(self, context_tokens: int) -> int:
        """Begin a round that brings all that is known; returns what earlier rounds brought."""
        known_tokens, self.sent_tokens = self.sent_tokens, context_tokens
        self.rounds, self.round_tokens = self.rounds + 1, context_tokens - known_tokens
        return known_tokens

    @property
    def caught_up(self) -> bool:
        """Whether all that was sent is computed, but for the last token: computing that one draws the next."""
        return self.phase is Phase.RECOMPUTING and self.computed_tokens >= self.sent_tokens - 1

    def says(self, context_tokens: int) -> bool:
        """Whether its stream has said more since somebody last asked; notes that somebody did.

        That is when to switch: a token has just come, and the next one is all that its caller waits for.
        """
        before, self.looked_at_tokens = self.looked_at_tokens, context_tokens
        return context_tokens > before

    def gap(self, context_tokens: int) -> int:
        """Tokens that the stream has said beyond what the destination was sent."""
        return context_tokens - self.sent_tokens


def gap_is_small(
    migration: Migration, context_tokens: int, resume_s: float, token_s: float, policy: MigrationPolicy
) -> str:
    """Say why the stream should switch now, `resume_s` being what computing the rest takes; empty: another round.

    `token_s`: what a token takes at the source. Where the gap shrinks no more, waiting does not make it smaller: on a
    node that is slower by a multiple, it never closes.
    """
    gap = migration.gap(context_tokens)
    said = f"{gap} tokens behind after {migration.rounds} rounds"
    if resume_s <= policy.close_in_tokens * token_s:
        return f"{said}: {resume_s * 1000:.0f} ms"
    if migration.rounds > 1 and gap >= migration.round_tokens:
        return f"{said}, and the gap shrinks no more"
    return ""
