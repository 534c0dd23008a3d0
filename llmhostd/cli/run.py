"""How does a person ask a model something from a terminal?"""

import sys
import time
from collections.abc import Iterator

import click
import msgspec

from llmhostd.cli.daemon_client import DaemonClient, running_daemon
from llmhostd.cli.root import Place, example
from llmhostd.cli.terminal import aside
from llmhostd.domain.errors import CallerError, OperatorError
from llmhostd.domain.words import Word


class _Delta(Word):
    content: str | None = None


class _Choice(Word):
    delta: _Delta = _Delta()
    text: str | None = None


class _Usage(Word):
    prompt_tokens: int
    completion_tokens: int


class _Problem(Word):
    message: str


class _Chunk(Word):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    error: _Problem | None = None


@click.command(
    epilog=example('run wren-160m "Say something about rivers."', "run wren-160m --raw < draft.txt > continued.txt")
)
@click.argument("model")
@click.argument("prompt", required=False)
@click.option("--system", help="A system message before the prompt.")
@click.option("--raw", is_flag=True, help="Continue the prompt as it is, without the model's chat template.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Stop after so many tokens.")
@click.option("--temperature", type=click.FloatRange(0, 2), help="0: always the likeliest token.")
@click.option("--seed", type=int, help="The same answer for the same seed.")
@click.option("--stats", is_flag=True, help="Say on stderr how many tokens, and how fast.")
@click.pass_obj
def run(place: Place, /, model: str, prompt: str | None, stats: bool, **options: object) -> None:
    """Ask a model and stream its answer to the terminal.

    Without PROMPT, or with -, the prompt is read from stdin. Loads the model if nobody did.
    """
    if prompt in (None, "-"):
        prompt = sys.stdin.read()
    if not prompt:
        raise CallerError("the prompt is empty", field="prompt")
    body, path = request_body(model, prompt, options)
    with running_daemon(place) as daemon:
        began = time.perf_counter()
        first_s, usage = 0.0, None
        for chunk in _answer(daemon, path, body):
            first_s = first_s or time.perf_counter() - began
            usage = chunk.usage or usage
            click.echo("".join(one.text or one.delta.content or "" for one in chunk.choices), nl=False)
        click.echo()
        if stats and usage:
            _say_stats(usage, first_s, time.perf_counter() - began)


def request_body(model: str, prompt: str, options: dict[str, object]) -> tuple[dict[str, object], str]:
    """The body and the path of the call."""
    given = {name: options[name] for name in ("max_tokens", "temperature", "seed") if options[name] is not None}
    body: dict[str, object] = {"model": model, "stream": True, "stream_options": {"include_usage": True}, **given}
    if options["raw"]:
        if options["system"]:
            raise CallerError("--system needs a chat template: leave out --raw", field="system")
        return body | {"prompt": prompt}, "/v1/completions"
    system = [{"role": "system", "content": options["system"]}] if options["system"] else []
    return body | {"messages": [*system, {"role": "user", "content": prompt}]}, "/v1/chat/completions"


def _answer(daemon: DaemonClient, path: str, body: dict[str, object]) -> Iterator[_Chunk]:
    """Chunks with text or usage in them; says that it waits, until the first."""
    with aside().status(f"waiting for {body['model']}") as waiting:
        for payload in daemon.stream(path, body):
            if payload == b"[DONE]":
                return
            chunk = msgspec.json.decode(payload, type=_Chunk)
            if chunk.error:
                raise OperatorError(chunk.error.message)
            if chunk.usage or any(one.text or one.delta.content for one in chunk.choices):
                waiting.stop()
                yield chunk


def _say_stats(usage: _Usage, first_s: float, whole_s: float) -> None:
    pace = (usage.completion_tokens - 1) / (whole_s - first_s) if usage.completion_tokens > 1 else 0.0
    click.echo(
        f"{usage.prompt_tokens} prompt tokens, {usage.completion_tokens} output tokens; "
        f"first after {first_s * 1e3:.0f} ms, then {pace:.1f} tokens/s",
        err=True,
    )
