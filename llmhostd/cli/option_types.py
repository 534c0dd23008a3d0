"""How are values typed that are more than a word or a number?"""

import json
from collections.abc import Iterable
from typing import Any

import click
from click.core import ParameterSource

from llmhostd.bench.schedule import Lengths
from llmhostd.domain.errors import CallerError


def refuse_given(names: Iterable[str], because: str) -> None:
    """Raises CallerError naming the option if one of these parameters was typed: here it would mean nothing."""
    context = click.get_current_context()
    for option in context.command.params:
        if option.name in names and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            raise CallerError(f"{option.opts[0]} {because}", field=option.name)


class LengthsOption(click.ParamType[Lengths]):
    """`140` or `100-180`."""

    name = "N or A-B"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Lengths:
        first, _, last = str(value).partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
            self.fail(f"{value!r} is neither a number nor a range like 100-180", param, ctx)
        return Lengths(first=int(first), last=int(last or first))


class BurstOption(click.ParamType[tuple[float, float]]):
    """`2,8`: seconds on, seconds off."""

    name = "ON,OFF"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, float]:
        try:
            on_s, off_s = (float(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not two numbers of seconds like 2,8", param, ctx)
        if on_s <= 0 or off_s < 0:
            self.fail(f"{value!r}: bursts must last, and silences may not be negative", param, ctx)
        return on_s, off_s


class JsonObject(click.ParamType[dict[str, object]]):
    """A JSON object."""

    name = "JSON"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, object]:
        try:
            parsed = json.loads(value) if isinstance(value, str) else value
        except json.JSONDecodeError as error:
            self.fail(f"is not JSON: {error}", param, ctx)
        if not isinstance(parsed, dict):
            self.fail("is not a JSON object", param, ctx)
        return parsed
