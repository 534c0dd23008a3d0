"""Where does the answer end, when a caller named strings that end it?

A stop string may begin in one piece of text and end in a later one, so text that could begin one is held back until
it is decided. What is emitted does not depend on how the text was cut into pieces.
"""

from collections.abc import Sequence


class StopStrings:
    """A matcher over one stream of text. The stop string itself is never emitted."""

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops`: non-empty strings; none at all lets everything through."""
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the stream. After it, everything is dropped."""

    def feed(self, text: str) -> str:
        """Add text; return what may be shown now."""
        if self.matched is not None:
            return ""
        self._held += text
        hits = [(start + len(stop), start, stop) for stop in self._stops if (start := self._held.find(stop)) >= 0]
        if hits:
            # The stop that is complete first ends the stream; of several that end together, the longest.
            _, start, self.matched = min(hits)
            shown, self._held = self._held[:start], ""
            return shown
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(shown) :]
        return shown

    def flush(self) -> str:
        """Return the text still held back: the stream ended without a stop string."""
        shown, self._held = self._held, ""
        return shown


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`, and is not all of it."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
