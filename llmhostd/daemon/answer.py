"""What waits for a caller to take it?"""

import asyncio
from collections.abc import Callable

from llmhostd.api.service import Piece, TokenUsage
from llmhostd.domain.errors import LlmhostdError


class Answer:
    """All choices of one call: `api.service.Completion`. Pieces gather here; taking them costs one wake-up.

    Bounded by what its requests may write: their `max_tokens` are held by their models' context lengths.
    """

    def __init__(self, choices: int, cancel: Callable[[], None], closed: Callable[[], None] | None = None) -> None:
        """`cancel()` frees what the unfinished choices hold; `closed()`: nobody will take anything any more."""
        self.choices = choices
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.error: LlmhostdError | None = None
        self._cancel = cancel
        self._closed = closed
        self._unfinished = choices
        self._pieces: list[Piece] = []
        self._taker: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._unfinished == 0

    def put(self, piece: Piece) -> None:
        """Add what came; `piece.finish` ends its choice."""
        self._pieces.append(piece)
        if piece.finish is not None:
            self._unfinished -= 1
        self._wake()

    def fail(self, error: LlmhostdError) -> None:
        """End all choices; whoever takes pieces gets what came before, then the error."""
        if not self.ended:
            self.error = error
            self._unfinished = 0
            self._cancel()
            self._wake()

    async def pieces(self) -> list[Piece]:
        """See `Completion`."""
        while not self._pieces:
            if self.error is not None:
                raise self.error
            if self.ended:
                return []
            self._taker = asyncio.get_running_loop().create_future()
            await self._taker
        taken, self._pieces = self._pieces, []
        return taken

    def usage(self) -> TokenUsage:
        """See `Completion`."""
        return TokenUsage(
            prompt_tokens=self.prompt_tokens, cached_tokens=self.cached_tokens, output_tokens=self.output_tokens
        )

    def cancel(self) -> None:
        """See `Completion`."""
        if not self.ended:
            self._unfinished = 0
            self._cancel()
            self._wake()
        if self._closed is not None:
            self._closed()
            self._closed = None

    def _wake(self) -> None:
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)
