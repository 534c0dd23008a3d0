"""How does a person put a server under load?"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import httpx
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from llmhostd.bench.client import Endpoint, Target
from llmhostd.bench.drive import drive, probe_scales
from llmhostd.bench.load import Load, schedule, write_requests
from llmhostd.bench.prompts import TokenScale
from llmhostd.bench.records import Outcome, Record
from llmhostd.bench.report import print_report
from llmhostd.bench.summary import Summary, summarize
from llmhostd.cli.option_types import BurstOption, JsonObject, LengthsOption
from llmhostd.cli.root import Place, example
from llmhostd.cli.terminal import aside, console
from llmhostd.domain.errors import CallerError, OperatorError
from llmhostd.domain.model import Slo

DEFAULT_URL = "http://127.0.0.1:11500"


@click.command(
    epilog=example(
        "bench --rate 3 --duration 60 --input-tokens 100-180 --output-tokens 30 --ignore-eos",
        "bench --trace azure.csv.gz --speed 2 --json result.json",
        "bench http://other:8000 --model a --model b --rate 4 --burst 2,8 --slo-ttft 1",
    )
)
@click.argument("url", required=False)
@click.option(
    "--model", "models", multiple=True, help="Ask for this model; several times for several.  [default: all it lists]"
)
@click.option("--trace", type=click.Path(path_type=Path), help="Arrivals from a CSV file: arrival_s[,model_id,"
              "input_tokens,output_tokens], plain or .gz.")  # fmt: skip
@click.option("--start", "start_s", default=0.0, help="Where in the trace to begin, in its seconds.", show_default=True)
@click.option("--speed", type=click.FloatRange(min=0, min_open=True), default=1.0, help="Play the trace faster.",
              show_default=True)  # fmt: skip
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), default=1.0, help="Requests per second, without "
              "a trace.", show_default=True)  # fmt: skip
@click.option(
    "--duration",
    "duration_s",
    type=float,
    help="Seconds of arrivals (of trace time).  [default: 60, or the whole trace]",
)
@click.option("--requests", type=click.IntRange(min=1), help="Stop after so many requests.")
@click.option("--cv", type=click.FloatRange(min=0, min_open=True), default=1.0, help="Burstiness of the gaps (Gamma); "
              "1 is Poisson.", show_default=True)  # fmt: skip
@click.option("--burst", type=BurstOption(), help="Poisson bursts of so many seconds, and silences between, at the "
              "same mean rate.")  # fmt: skip
@click.option("--zipf", type=click.FloatRange(min=0), default=1.0, help="Skew of the models' popularity, in the order "
              "given; 0 is even.", show_default=True)  # fmt: skip
@click.option("--input-tokens", type=LengthsOption(), default="140", help="Prompt length.", show_default=True)
@click.option("--output-tokens", type=LengthsOption(), default="30", help="max_tokens.", show_default=True)
@click.option("--shared-prefix", "shared_prefix_words", type=click.IntRange(min=0), default=0, help="First so many "
              "words are the same in all prompts.", show_default=True)  # fmt: skip
@click.option("--prompt-file", type=click.Path(path_type=Path), help="Prompts, one a line, in turn.")
@click.option("--warmup/--no-warmup", default=True, help="Ask each model twice before the clock starts: it is loaded "
              "then, and its tokens per word are known.", show_default=True)  # fmt: skip
@click.option("--tokens-per-word", type=click.FloatRange(min=0, min_open=True), default=1.3, help="Used with "
              "--no-warmup.", show_default=True)  # fmt: skip
@click.option("--endpoint", type=click.Choice([one.value for one in Endpoint]), default="chat", help="Which of "
              "OpenAI's endpoints to ask.", show_default=True)  # fmt: skip
@click.option("--ignore-eos", is_flag=True, help="Ask for exactly --output-tokens (an extension that vLLM, llama.cpp "
              "and llmhostd know).")  # fmt: skip
@click.option("--extra", type=JsonObject(), default="{}", help='More for each request\'s body, e.g. \'{"service_tier": '
              '"flex"}\'.')  # fmt: skip
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Also from $OPENAI_API_KEY.")
@click.option("--timeout", type=float, default=600.0, help="A request that takes longer is lost.", show_default=True)
@click.option("--slo-ttft", type=float, default=2.0, help="Seconds to the first token.", show_default=True)
@click.option("--slo-tpot", type=float, default=0.2, help="Seconds per output token.", show_default=True)
@click.option("--seed", type=int, default=0, help="The same arrivals, lengths and prompts.", show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures and every request here.")
@click.pass_obj
def bench(
    place: Place, /, url: str | None, endpoint: str, ignore_eos: bool, extra: dict[str, object], api_key: str | None,
    timeout: float, slo_ttft: float, slo_tpot: float, json_file: Path | None, warmup: bool, **load: Any,
) -> None:  # fmt: skip
    """Put any OpenAI-compatible server under open-loop load.

    Requests are sent when they are due, however late the answers are. Time to first token counts from when a request
    was due. A refused request (429, 503) counts as a missed one.
    """
    target = Target(
        url=url or place.url or DEFAULT_URL, endpoint=Endpoint(endpoint), api_key=api_key, ignore_eos=ignore_eos,
        extra=extra, timeout_s=timeout,
    )  # fmt: skip
    out = console()
    slo = Slo(ttft_s=slo_ttft, tpot_s=slo_tpot)
    records = asyncio.run(_measure(target, Load(**load), warmup, aside()))
    summary = summarize(records, slo)
    print_report(out, summary, records)
    if json_file:
        _write_json(json_file, summary, records, target, load)
        out.print(f"every request is in {json_file}")


async def _measure(target: Target, load: Load, warmup: bool, stderr: Console) -> list[Record]:
    models = list(load.models) or list_models(target)
    planned = schedule(load, models)
    if not planned:
        raise CallerError("no request falls into this time: raise --rate or --duration")
    asked = sorted({one.model for one in planned})
    scales: Mapping[str, TokenScale] = {}
    if warmup:
        with stderr.status(f"warming up {len(asked)} models"):
            scales = await probe_scales(target, asked, load.seed)
    requests = write_requests(target, load, planned, scales)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[state]}"), console=stderr, transient=True, refresh_per_second=4,
    ) as progress:  # fmt: skip
        bar = progress.add_task("sent", total=len(requests), state="")

        sent = ended = refused = 0

        def watch(record: Record | None) -> None:
            nonlocal sent, ended, refused
            sent += record is None
            ended += record is not None
            refused += record is not None and record.outcome is Outcome.REFUSED
            progress.update(bar, completed=sent, state=f"{sent - ended} open, {refused} refused")

        return await drive(target, requests, watch)


def list_models(target: Target) -> list[str]:
    """What the server says it has."""
    url = target.split().geturl() + "/models"
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    try:
        answer = httpx.get(url, headers=headers, timeout=30.0)
        answer.raise_for_status()
        names = [str(one["id"]) for one in answer.json()["data"]]
    except httpx.HTTPError as error:
        raise OperatorError(f"{url}: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise OperatorError(f"{url} did not answer with a list of models: give --model") from error
    if not names:
        raise OperatorError(f"{url} lists no models")
    return names


def _write_json(
    file: Path, summary: Summary, records: Sequence[Record], target: Target, load: Mapping[str, object]
) -> None:
    settings = {"url": target.url, "endpoint": target.endpoint, "ignore_eos": target.ignore_eos, "extra": target.extra}
    whole = {"settings": settings | dict(load), "summary": summary, "requests": records}
    try:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(whole, enc_hook=str), indent=2))
    except OSError as error:
        raise OperatorError(f"{file} cannot be written: {error}") from error
