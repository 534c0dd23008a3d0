"""What does the caller see of a stream of tokens?"""

from collections.abc import Sequence

from llmhostd.text.detokenize import Detokenizer
from llmhostd.text.stop_strings import StopStrings


class OutputText:
    """Tokens in, text out: whole characters only, nothing from a stop string on."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str] = ()) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)

    @property
    def stopped(self) -> bool:
        """Whether a stop string was met. Tokens after it have no text; the request can be cancelled."""
        return self._stops.matched is not None

    def push(self, token_id: int) -> str:
        """Add a token; return the text that may be shown now (often empty)."""
        return self._stops.feed(self._detokenizer.push(token_id))

    def finish(self) -> str:
        """End the stream; return the rest of the text."""
        return self._stops.feed(self._detokenizer.flush()) + self._stops.flush()
