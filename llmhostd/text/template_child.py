"""What does a chat template say, when nobody trusts it?

A chat template is a program that came with a checkpoint. It runs here, in a process of its own, in jinja2's immutable
sandbox, under a bound on CPU time, memory and output that the kernel holds: no loop, string or power can stop the
daemon. Environment, filters and globals are those of `transformers`' `apply_chat_template`.

Started by `template_process`; reads and writes frames of a 4-byte little-endian length and JSON, and ends when its
input does.
"""

import datetime
import functools
import json
import resource
import signal
import struct
import sys
from typing import Any, BinaryIO, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_TEMPLATE_NAME = "<template>"
"""What jinja2 calls a template made from a string, in tracebacks."""


class RefusedByTemplateError(Exception):
    """The template called `raise_exception`: it does not like the messages."""


class Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here it is a plain block."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the body in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def environment() -> ImmutableSandboxedEnvironment:
    """Make the environment that templates written for `transformers` expect."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, autoescape=False, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = _strftime_now
    return made


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise RefusedByTemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().astimezone().strftime(form)


def answer(compiled: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Render one request: {"text"}, or {"refused"} by the template, or {"error", "line"}."""
    try:
        return {"text": _bounded_text(compiled(request["template"]), request["variables"], request["max_chars"])}
    except RefusedByTemplateError as refusal:
        return {"refused": str(refusal)}
    except jinja2.TemplateSyntaxError as error:
        return {"error": error.message or "syntax error", "line": error.lineno}
    except MemoryError as error:
        return {"error": "it needs too much memory", "line": _line_of(error)}
    except RecursionError as error:
        return {"error": "it recurses too deep", "line": _line_of(error)}
    except Exception as error:  # noqa: BLE001 - a template may raise anything; all of it is an answer
        return {"error": f"{type(error).__name__}: {error}"[:500], "line": _line_of(error)}


def _bounded_text(template: jinja2.Template, variables: dict[str, Any], max_chars: int) -> str:
    pieces, length = [], 0
    for piece in template.generate(**variables):
        pieces.append(piece)
        length += len(piece)
        if length > max_chars:
            raise OverflowError(f"it writes more than {max_chars} characters")
    return "".join(pieces)


def _line_of(error: BaseException) -> int | None:
    """Return the template's line that raised: the innermost frame that jinja2 rewrote to it."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _TEMPLATE_NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _read(stream: BinaryIO) -> bytes | None:
    prefix = stream.read(4)
    return stream.read(struct.unpack("<I", prefix)[0]) if len(prefix) == 4 else None


def main() -> None:
    """Serve frames until the input ends. Arguments: CPU seconds per rendering, bytes of address space."""
    cpu_s, memory_bytes = float(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the daemon drains on ^C and then closes our input
    compiled = functools.lru_cache(maxsize=64)(environment().from_string)
    while (frame := _read(sys.stdin.buffer)) is not None:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # SIGPROF ends the process, whatever it is doing
        try:
            reply = json.dumps(answer(compiled, json.loads(frame))).encode()
        except MemoryError:
            reply = json.dumps({"error": "it needs too much memory", "line": None}).encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(struct.pack("<I", len(reply)) + reply)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
