"""What was one request's prompt, what was streamed so far, and what does its caller see of a new token?

The daemon keeps prompt and tokens of every request until its end, so a request can always move as its tokens.
"""

from collections.abc import Sequence

from llmhostd.api.service import Piece, ShownLogprobs, ShownToken
from llmhostd.daemon.answer import Answer
from llmhostd.domain.ids import InstanceId, NodeId
from llmhostd.domain.reports import RowReport, TokenLogprobs
from llmhostd.domain.request import FinishReason, RequestShape, Sampling
from llmhostd.state.flex import ChoiceProgress
from llmhostd.text.output import OutputText
from llmhostd.text.tokenizer import ModelTokenizer


class LiveRequest:
    """One choice of one call. Times are seconds on the monotonic clock."""

    __slots__ = (
        "_pays_for_prompt", "_text", "_tokenizer", "answer", "cached_tokens", "choice", "finish", "first_run_s",
        "first_token_s", "last_token_s", "prompt", "sampling", "shape", "streamed", "told",
    )  # fmt: skip

    def __init__(
        self,
        shape: RequestShape,
        prompt: tuple[int, ...],
        sampling: Sampling,
        *,
        tokenizer: ModelTokenizer,
        stop: Sequence[str],
        answer: Answer,
        choice: int,
        pays_for_prompt: bool,
    ) -> None:
        """`pays_for_prompt`: of a prompt's n choices the first; usage counts the prompt, and what was cached, once."""
        self.shape = shape
        """As last submitted: with its grace, once it had to wait for a cold start."""
        self.told: tuple[NodeId, InstanceId] | None = None
        """Who was last told to run it. What others still say of it is late news: it moved as the tokens it had then,
        and the host mind keeps the same rule."""
        self.prompt = prompt
        self.sampling = sampling
        self.answer = answer
        self.choice = choice
        self.streamed: list[int] = []
        self.finish: FinishReason | None = None
        self.cached_tokens = 0
        self.first_run_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s = 0.0
        self._pays_for_prompt = pays_for_prompt
        self._tokenizer = tokenizer
        self._text = OutputText(tokenizer.detokenizer(), stop)

    @property
    def context(self) -> tuple[int, ...]:
        """What is submitted when it begins, and again whenever it moves."""
        return (*self.prompt, *self.streamed)

    @property
    def met_its_slo(self) -> bool:
        """Whether the first token was in time and the others came fast enough on average."""
        slo, first_s = self.shape.slo, self.first_token_s
        if first_s is None:
            return False
        in_time = first_s - self.shape.arrived_s <= slo.ttft_s + self.shape.grace_s
        return in_time and (self.tpot_s is None or self.tpot_s <= slo.tpot_s)

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds per token after the first; None when there is but one."""
        if self.first_token_s is None or len(self.streamed) < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (len(self.streamed) - 1)

    def advance(self, row: RowReport, started_s: float, now: float) -> FinishReason | None:
        """Take in what an iteration did for it; hand the text to whoever waits. Return why it ended, if it did."""
        if self.first_run_s is None:
            self.first_run_s = started_s
        if not self.streamed:  # what is found again after a move was computed for this same request
            self.cached_tokens += row.cached
            self.answer.cached_tokens += row.cached if self._pays_for_prompt else 0
        if not row.tokens and row.finish is None:
            return None
        text, count = self._detokenize(row.tokens)
        finish = FinishReason.STOP if self._text.stopped else row.finish
        if finish is not None:
            text += self._text.finish()
        self.finish = finish
        if count:
            self.streamed += row.tokens[:count]
            self.last_token_s = now
            self.first_token_s = now if self.first_token_s is None else self.first_token_s
            self.answer.output_tokens += count
        self.answer.put(Piece(self.choice, text, finish, self._logprobs(row, count) if row.logprobs else ()))
        return finish

    @property
    def progress(self) -> ChoiceProgress:
        """What another run of the daemon would have to know to go on."""
        return ChoiceProgress(
            seed=self.sampling.seed, tokens=tuple(self.streamed), cached_tokens=self.cached_tokens, finish=self.finish
        )

    def take_up(self, progress: ChoiceProgress) -> None:
        """Go on from the tokens of an earlier run of the daemon; their text goes to whoever waits now."""
        text = "".join(map(self._text.push, progress.tokens))
        if progress.finish is not None:
            text += self._text.finish()
        self.streamed += progress.tokens
        self.finish = progress.finish
        self.cached_tokens = progress.cached_tokens
        self.answer.cached_tokens += progress.cached_tokens if self._pays_for_prompt else 0
        self.answer.output_tokens += len(progress.tokens)
        if text or progress.finish is not None:
            self.answer.put(Piece(self.choice, text, progress.finish))

    def _detokenize(self, tokens: Sequence[int]) -> tuple[str, int]:
        """Return new text, and how many tokens it took: those behind a stop string were drawn for nothing."""
        text = ""
        for count, token in enumerate(tokens, start=1):
            text += self._text.push(token)
            if self._text.stopped:
                return text, count
        return text, len(tokens)

    def _logprobs(self, row: RowReport, count: int) -> list[ShownLogprobs]:
        """Return shown positions: a token that ended the text is not part of the answer."""
        if row.finish is FinishReason.STOP and not self._text.stopped:
            count -= 1
        return [self._position(token, one) for token, one in zip(row.tokens[:count], row.logprobs, strict=False)]

    def _position(self, token: int, logprobs: TokenLogprobs) -> ShownLogprobs:
        bytes_of = self._tokenizer.token_bytes
        return ShownLogprobs(
            chosen=ShownToken(token=bytes_of(token), logprob=logprobs.chosen),
            top=tuple(ShownToken(token=bytes_of(one), logprob=value) for one, value in logprobs.top),
        )
