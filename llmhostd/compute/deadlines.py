"""When is a request's next token due? (SLINFER eq. 1, and what a caller feels besides.)"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeadlinePolicy:
    """How a promise becomes a deadline for every token."""

    from_first_token: bool = True
    """The time per output token counts from the first token that the caller saw. False: from when that was due, so that
    an early first token is paid back by slow later ones, as in SLINFER's eq. 1."""
    longest_gap_slo_factor: float = 6.0
    """No token is due later than this many TPOT SLOs after the one before it, however early that one came: a mean time
    per output token forgives a stream that stalls for half a minute. 0: no such bound, as in SLINFER."""
    late_first_token_slo_factor: float = 1.0
    """A first token that can no longer be in time is due so many TTFT SLOs later than promised: until then whoever can
    still be in time goes first. 0: it goes before everybody, as in SLINFER, and others are late for what is lost."""


AS_PROMISED = DeadlinePolicy()
"""The defaults."""
