"""How many tokens does an engine compute when it is asked for so many?"""

from bisect import bisect_left

from llmhostd.domain.profile import Profile


class Padding:
    """Counts of tokens as an engine rounds them up (`Profile.token_counts`, `Profile.token_step`)."""

    __slots__ = ("_small", "_step")

    def __init__(self, profile: Profile) -> None:
        counts = (*(one for one in sorted(profile.token_counts) if one < profile.token_step), profile.token_step)
        up_to = range(profile.token_step + 1)
        self._step = profile.token_step
        self._small = [counts[bisect_left(counts, n)] if n else 0 for n in up_to] if profile.token_counts else [*up_to]

    def padded(self, tokens: int) -> int:
        """Return what so many tokens are rounded up to; never falls."""
        step = self._step
        return self._small[tokens] if tokens <= step else -(-tokens // step) * step
