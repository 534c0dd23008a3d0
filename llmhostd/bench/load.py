"""What load is wanted: which arrivals, models, lengths and prompts?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from llmhostd.bench.client import Request, Target, prepare
from llmhostd.bench.prompts import PromptWriter, TokenScale
from llmhostd.bench.schedule import (
    Lengths,
    PlannedRequest,
    Stream,
    gamma_arrivals,
    lengths,
    on_off_arrivals,
    plan,
    zipf_models,
)
from llmhostd.bench.trace import Fallbacks, read_trace
from llmhostd.domain.errors import OperatorError, in_words

DEFAULT_DURATION_S = 60.0
PROMPT_LENGTHS = Lengths(first=140, last=140)
OUTPUT_LENGTHS = Lengths(first=30, last=30)


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent."""

    models: Sequence[str]
    """Names, the most popular first; empty: all that the server lists."""
    trace: Path | None = None
    """Arrivals from this file; the next two are about it."""
    start_s: float = 0.0
    speed: float = 1.0
    rate: float = 1.0
    """Requests per second; this and the next two are for a load without a trace."""
    cv: float = 1.0
    """Coefficient of variation of the gaps: 1 is Poisson."""
    burst: tuple[float, float] | None = None
    """Seconds on and off, instead of `cv`."""
    duration_s: float | None = None
    """Of arrivals, in the trace's time; None: the whole trace, or a minute, or until `requests` are sent."""
    requests: int | None = None
    zipf: float = 1.0
    input_tokens: Lengths = PROMPT_LENGTHS
    output_tokens: Lengths = OUTPUT_LENGTHS
    shared_prefix_words: int = 0
    prompt_file: Path | None = None
    tokens_per_word: float = 1.3
    """For models that were not probed."""
    seed: int = 0


def schedule(load: Load, models: Sequence[str]) -> list[PlannedRequest]:
    """Who asks for how much, when."""
    asked = zipf_models(load.seed, models, load.zipf)
    inputs = lengths(load.seed, Stream.INPUTS, load.input_tokens)
    outputs = lengths(load.seed, Stream.OUTPUTS, load.output_tokens)
    if load.trace:
        duration_s = float("inf") if load.duration_s is None else load.duration_s
        rows = read_trace(load.trace, models, Fallbacks(asked, inputs, outputs), start_s=load.start_s,
                          duration_s=duration_s, speed=load.speed)  # fmt: skip
        return rows[: load.requests]
    if load.burst:
        arrivals = on_off_arrivals(load.seed, load.rate, *load.burst)
    else:
        arrivals = gamma_arrivals(load.seed, load.rate, load.cv)
    limit_s = DEFAULT_DURATION_S if load.requests is None else float("inf")
    return plan(arrivals, asked, inputs, outputs, duration_s=load.duration_s or limit_s, most=load.requests)


def write_requests(
    target: Target, load: Load, planned: Sequence[PlannedRequest], scales: Mapping[str, TokenScale]
) -> list[Request]:
    """Prompts of the wanted lengths, encoded before the clock starts."""
    if load.prompt_file:
        try:
            lines = [line for line in load.prompt_file.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise OperatorError(f"{load.prompt_file} cannot be read: {in_words(error)}") from error
        if not lines:
            raise OperatorError(f"{load.prompt_file} has no prompt in it")
        return [prepare(target, one, line) for one, line in zip(planned, cycle(lines), strict=False)]
    writer = PromptWriter(load.seed, load.shared_prefix_words)
    guess = TokenScale(base_tokens=0.0, tokens_per_word=load.tokens_per_word)
    return [prepare(target, one, writer.write(scales.get(one.model, guess).words(one.input_tokens))) for one in planned]
