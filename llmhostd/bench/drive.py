"""Who sends each request when it is due, whatever became of those before it?"""

import asyncio
import gc
import time
from collections.abc import Callable, Sequence

from llmhostd.bench.client import Request, Target, ask, prepare
from llmhostd.bench.prompts import PROBE_WORDS, PromptWriter, TokenScale, scale_from_probes
from llmhostd.bench.records import Outcome, Record
from llmhostd.bench.schedule import PlannedRequest, Stream
from llmhostd.domain.errors import OperatorError

PROBE_PATIENCE_S = 300.0
"""How long a probe keeps asking a server that is loading or full."""
PROBE_RETRY_S = 1.0


async def drive(
    target: Target, requests: Sequence[Request], watch: Callable[[Record | None], None] | None = None
) -> list[Record]:
    """Run a schedule, which is in order of `due_s`; one record per request in the same order.

    `watch` is called with None after each send and with the record after each end.
    """
    sent: list[asyncio.Task[Record]] = []
    gc.collect()
    gc.freeze()  # the prepared requests need never be looked at again
    began = time.perf_counter()

    def clock() -> float:
        return time.perf_counter() - began

    async def one(request: Request) -> Record:
        record = await ask(target, request, clock)
        if watch:
            watch(record)
        return record

    async with asyncio.TaskGroup() as running:
        for request in requests:
            await asyncio.sleep(max(0.0, request.planned.due_s - clock()))
            sent.append(running.create_task(one(request)))
            if watch:
                watch(None)
    gc.unfreeze()
    return [task.result() for task in sent]


async def probe_scales(target: Target, models: Sequence[str], seed: int) -> dict[str, TokenScale]:
    """Ask each model twice, one after the other: it is loaded then, and its tokens per word are known.

    Raises OperatorError with the server's own words if a model cannot answer.
    """
    scales = {}
    writer = PromptWriter(seed, purpose=Stream.PROBES)
    for model in models:
        scales[model] = scale_from_probes([await _probe(target, model, writer.write(words)) for words in PROBE_WORDS])
    return scales


async def _probe(target: Target, model: str, prompt: str) -> int:
    deadline = time.perf_counter() + PROBE_PATIENCE_S
    planned = PlannedRequest(due_s=0.0, model=model, input_tokens=0, output_tokens=2)
    while True:
        record = await ask(target, prepare(target, planned, prompt), time.perf_counter)
        if record.outcome is not Outcome.REFUSED or time.perf_counter() > deadline:
            break
        await asyncio.sleep(record.retry_after_s or PROBE_RETRY_S)
    if record.outcome is not Outcome.COMPLETED:
        raise OperatorError(f"{target.url} does not answer for {model}: {record.status or ''} {record.error}".strip())
    if record.prompt_tokens is None:
        raise OperatorError(f"{target.url} does not count prompt tokens: give --tokens-per-word and --no-warmup")
    return record.prompt_tokens
