"""Which of the known names was probably meant?"""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint with the nearest known name, or all of a few; empty when there are none."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; there are: {', '.join(names[:10])}" if names else ""
