"""How long does an iteration take, module by module? (OmniServe §3.3.1.)

f_D(tokens) + f_PA(load) + f_DA(load, requests): dense modules between the steps that Algorithm 1 found, attention
linear in its load (eq. 2 and 3). Only whole iterations can be timed from outside, so the parts are told apart by how
they grow: attention of prefills by what a longer past adds to the same chunk; dense computation by what is left of a
chunk without a past; attention of decodes by what is left of a decode batch. b_PA goes with the dense part.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from llmhostd.compute.interpolation import never_falling
from llmhostd.compute.least_squares import fit
from llmhostd.compute.padding import Padding
from llmhostd.domain.profile import Profile

LEAST_S = 1e-6
"""No iteration takes less."""


class Modules:
    """Fitted to the samples of a profile whose dense steps were measured."""

    __slots__ = ("_dense_s", "_padded", "_per_context_s", "_per_pair_s", "_per_request_s", "_start_s", "_tokens")

    def __init__(self, profile: Profile) -> None:
        self._padded = Padding(profile).padded
        self._per_pair_s = _prefill_attention(profile)
        self._tokens, self._dense_s = _dense(profile, self._per_pair_s, self._padded)
        rows, left_s, weights = [], [], []
        for one in profile.decode:
            rows.append((float(one.batch * one.context_tokens), float(one.batch), 1.0))
            left_s.append(one.seconds - self.dense_s(one.batch))
            weights.append(1.0 / one.seconds)
        self._per_context_s, self._per_request_s, self._start_s = fit(rows, left_s, weights, least=(0.0, 0.0, None))

    def seconds(
        self,
        prefill: tuple[tuple[int, int], ...],
        batch: int,
        context: int,
        prefill_factor: float = 1.0,
        decode_factor: float = 1.0,
    ) -> float:
        """Seconds of prefill chunks (chunk, past) and a decode batch with its mean context, each times its factor."""
        batch = max(batch, 0)
        tokens = batch
        pairs = 0
        for chunk, past in prefill:
            tokens += chunk
            pairs += chunk * past + chunk * (chunk + 1) // 2
        if not tokens:
            return 0.0
        decodes_s = 0.0
        if batch:
            decodes_s = self._per_context_s * batch * context + self._per_request_s * batch + self._start_s
        dense_s = self.dense_s(tokens)
        if not prefill:
            return max(dense_s + decodes_s, LEAST_S) * decode_factor
        return max((dense_s + self._per_pair_s * pairs) * prefill_factor + decodes_s * decode_factor, LEAST_S)

    def dense_s(self, tokens: int) -> float:
        """f_D: between measured counts of tokens on a line, beyond them on the last one."""
        at = self._padded(tokens)
        axis, values = self._tokens, self._dense_s
        if at <= axis[0] or len(axis) == 1:
            return values[0]
        right = min(bisect_right(axis, at), len(axis) - 1)
        left = right - 1
        along = (at - axis[left]) / (axis[right] - axis[left])
        return values[left] + along * (values[right] - values[left])


def _prefill_attention(profile: Profile) -> float:
    """a_PA: seconds per (token, token before it), from chunks of the same length after different pasts."""
    alone = {one.chunk_tokens: one.seconds for one in profile.prefill if not one.past_tokens}
    after = [one for one in profile.prefill if one.past_tokens and one.chunk_tokens in alone]
    if not after:
        return 0.0
    rows = [(float(one.chunk_tokens * one.past_tokens),) for one in after]
    grown_s = [one.seconds - alone[one.chunk_tokens] for one in after]
    return fit(rows, grown_s, [1.0 / one.seconds for one in after], least=(0.0,))[0]


def _dense(profile: Profile, per_pair_s: float, padded: Callable[[int], int]) -> tuple[Sequence[int], Sequence[float]]:
    """f_D's measured points, by what was computed; never falling, and never nothing."""
    measured = {padded(one.chunk_tokens): one.seconds for one in profile.prefill if not one.past_tokens}
    measured |= {padded(one.tokens): one.seconds for one in profile.dense}
    tokens = sorted(measured)
    dense_s = [measured[count] - per_pair_s * (count * (count + 1) // 2) for count in tokens]
    return tokens, [max(row[0], LEAST_S) for row in never_falling([[one] for one in dense_s])]
