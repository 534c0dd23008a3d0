"""What does a recorded trace ask for?

A CSV file, plain or gzipped, with a header line. `arrival_s` must be there; `model_id`, `input_tokens` and
`output_tokens` are taken from the fallbacks where the trace does not say.
"""

import csv
import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from llmhostd.bench.schedule import PlannedRequest
from llmhostd.domain.errors import OperatorError, in_words


class Fallbacks:
    """Endless sources for the columns that a trace lacks."""

    def __init__(self, models: Iterator[str], inputs: Iterator[int], outputs: Iterator[int]) -> None:
        self.models = models
        self.inputs = inputs
        self.outputs = outputs


def read_trace(
    path: Path,
    models: Sequence[str],
    fallbacks: Fallbacks,
    *,
    start_s: float = 0.0,
    duration_s: float = float("inf"),
    speed: float = 1.0,
) -> list[PlannedRequest]:
    """Requests of the trace that arrive in `start_s <= t < start_s + duration_s` (trace time), sped up by `speed`.

    A numeric `model_id` stands for `models[model_id % len(models)]`, any other for itself.
    Raises OperatorError naming the file, the line and the column.
    """
    try:
        with _open(path) as file:
            planned = [
                _row(row, f"{path}, line {number}", models, fallbacks)
                for number, row in enumerate(_rows(csv.DictReader(file), path), start=2)
            ]
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise OperatorError(f"trace {path} cannot be read: {in_words(error)}") from error
    window = [one for one in planned if start_s <= one.due_s < start_s + duration_s]
    moved = (((one.due_s - start_s) / speed, one) for one in sorted(window, key=lambda one: one.due_s))
    return [
        PlannedRequest(due_s=due_s, model=one.model, input_tokens=one.input_tokens, output_tokens=one.output_tokens)
        for due_s, one in moved
    ]


def _open(path: Path) -> TextIO:
    return gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="")


def _rows(reader: "csv.DictReader[str]", path: Path) -> "csv.DictReader[str]":
    if "arrival_s" not in (reader.fieldnames or ()):
        columns = ", ".join(reader.fieldnames or ()) or "none"
        raise OperatorError(f"trace {path} has no column arrival_s; its columns are: {columns}")
    return reader


def _row(row: dict[str, str], where: str, models: Sequence[str], fallbacks: Fallbacks) -> PlannedRequest:
    model = row.get("model_id") or next(fallbacks.models)
    wanted_in = _number(row, "input_tokens", where)
    wanted_out = _number(row, "output_tokens", where)
    return PlannedRequest(
        due_s=_number(row, "arrival_s", where) or 0.0,
        model=models[int(model) % len(models)] if model.isdecimal() else model,
        input_tokens=next(fallbacks.inputs) if wanted_in is None else max(1, int(wanted_in)),
        output_tokens=next(fallbacks.outputs) if wanted_out is None else max(1, int(wanted_out)),
    )


def _number(row: dict[str, str], column: str, where: str) -> float | None:
    text = row.get(column)
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise OperatorError(f"{where}: {column} is {text!r}, not a number") from None
