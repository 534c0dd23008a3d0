"""How long will an iteration take? (SLINFER §VI-B.)"""

from typing import Protocol


class Estimator(Protocol):
    """Predicts seconds for one model shape on one kind of hardware."""

    def iteration_s(self, *, prefill: tuple[tuple[int, int], ...], decode_batch: int, decode_context: int) -> float:
        """One iteration: prefill chunks as (chunk, past) tokens, and a decode batch with its mean context."""
        ...
