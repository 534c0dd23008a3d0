"""How long does an iteration take, going by the samples nearest to it? (SLINFER §VI-B.)"""

from collections.abc import Mapping

from llmhostd.compute.interpolation import Line, MonotoneGrid
from llmhostd.compute.padding import Padding
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.profile import Profile


class Interpolated:
    """Interpolates the two grids of a profile.

    A mixed iteration is its dense part (all its tokens together, from the prefill grid) plus what attention adds for
    each chunk's past and for the decodes' contexts: OmniServe's f_D + f_PA + f_DA (§3.3.1), read off the grids. A lone
    prefill chunk and a pure decode batch are exactly the grids. A batch that the engine rounds up has the dense part of
    what it is rounded up to.
    """

    __slots__ = ("_batches", "_decode", "_decode_attention", "_padded", "_prefill", "_prefill_attention")

    def __init__(self, profile: Profile) -> None:
        """Prepare lookups. Raises OperatorError when the profile is not two full grids of positive times."""
        prefill = {(s.chunk_tokens, s.past_tokens): s.seconds for s in profile.prefill}
        decode = {(s.batch, s.context_tokens): s.seconds for s in profile.decode}
        self._prefill = _grid(profile, "prefill", "chunk", "past", prefill)
        self._decode = _grid(profile, "decode", "batch", "context", decode)
        self._prefill_attention = _growth_along_y(self._prefill, prefill)
        self._decode_attention = _growth_along_y(self._decode, decode)
        self._padded = Padding(profile).padded
        self._batches: dict[int, tuple[Line, Line]] = {}
        """What decode batches of a size take, and their attention, over their context: most of what is ever asked."""

    def seconds(
        self,
        prefill: tuple[tuple[int, int], ...],
        batch: int,
        context: int,
        prefill_factor: float = 1.0,
        decode_factor: float = 1.0,
    ) -> float:
        """Seconds of prefill chunks (chunk, past) and a decode batch with its mean context, each times its factor."""
        if not prefill:
            return self._decodes(batch)[0].at(context) * decode_factor if batch > 0 else 0.0
        tokens, attention_s, alone_s = max(batch, 0), 0.0, 0.0
        for chunk, past in prefill:
            tokens += chunk
            if past > 0:
                attention_s += self._prefill_attention.at(chunk, past)
            alone_s = max(alone_s, self._prefill.at(self._padded(chunk), past))
        if batch <= 0 and len(prefill) == 1:
            return alone_s * prefill_factor
        dense_s = self._prefill.at(self._padded(tokens), 0)
        seconds = max(dense_s + attention_s, alone_s) * prefill_factor
        if batch <= 0:
            return seconds
        alone, attention = self._decodes(batch)
        return max(seconds + attention.at(context) * decode_factor, alone.at(context) * decode_factor)

    def _decodes(self, batch: int) -> tuple[Line, Line]:
        known = self._batches.get(batch)
        if known is None:
            attention, computed = self._decode_attention.along(batch), self._padded(batch)
            alone = self._decode.along(batch) if batch == computed else attention.above(self._decode.least(computed))
            known = self._batches[batch] = alone, attention
        return known


def _grid(profile: Profile, table: str, x: str, y: str, points: Mapping[tuple[int, int], float]) -> MonotoneGrid:
    """Build one table, or say which sample is wrong."""
    who = f"profile of {profile.shape_key} on {profile.hardware_key}: {table}"
    if not points:
        raise OperatorError(f"{who} has no samples; measure it again")
    for (x_at, y_at), seconds in points.items():
        if not 0.0 < seconds < float("inf"):
            raise OperatorError(f"{who} sample {x} {x_at}, {y} {y_at} took {seconds} s; measure it again")
    try:
        return MonotoneGrid(points)
    except KeyError as missing:
        x_at, y_at = missing.args[0]
        raise OperatorError(f"{who} has no sample for {x} {x_at}, {y} {y_at}; measure it again") from None


def _growth_along_y(grid: MonotoneGrid, points: Mapping[tuple[int, int], float]) -> MonotoneGrid:
    """What attention adds: seconds above those of the least past (or context) in the same row."""
    least = min(y for _, y in points)
    return MonotoneGrid({(x, y): grid.at(x, y) - grid.at(x, least) for x, y in points})
