"""Is this field of a config.json there, and of the right kind? Every error names the file and the field."""

import sys
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from llmhostd.domain.errors import CheckpointError

_LARGEST = sys.float_info.max


class ConfigFields:
    """Typed access to one JSON object of a configuration file. `where` is the file's path, for errors."""

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix
        self.where = where

    def wrong(self, field: str, message: str) -> CheckpointError:
        """Return (not raise) the error that says what is wrong with a field."""
        return CheckpointError(f"{self.where}: `{self._prefix}{field}` {message}")

    def has(self, field: str) -> bool:
        """Whether the field is there and not null."""
        return self._values.get(field) is not None

    def names(self) -> tuple[str, ...]:
        """Return the names of its fields, in their order."""
        return tuple(self._values)

    def _get(self, field: str) -> Any:
        value = self._values.get(field)
        if value is None:
            near = get_close_matches(field, sorted(filter(self.has, self._values)), n=1, cutoff=0.8)
            hint = f"; there is `{self._prefix}{near[0]}`" if near else ""
            raise self.wrong(field, f"is missing{hint}")
        return value

    def positive_int(self, field: str, default: int | None = None) -> int:
        """Read a whole number > 0."""
        value = default if default is not None and not self.has(field) else self._get(field)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.wrong(field, f"must be a whole number above 0, is {value!r}")
        return value

    def index(self, field: str, default: int) -> int:
        """Read a whole number >= 0."""
        value = self._values.get(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.wrong(field, f"must be a whole number of at least 0, is {value!r}")
        return value

    def positive_float(self, field: str, default: float | None = None) -> float:
        """Read a number > 0."""
        value = default if default is not None and not self.has(field) else self._get(field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LARGEST:
            raise self.wrong(field, f"must be a number above 0, is {value!r}")
        return float(value)

    def flag(self, field: str, default: bool) -> bool:
        """Read true or false."""
        value = self._get(field) if self.has(field) else default
        if not isinstance(value, bool):
            raise self.wrong(field, f"must be true or false, is {value!r}")
        return value

    def text(self, field: str, default: str) -> str:
        """Read a string."""
        value = self._get(field) if self.has(field) else default
        if not isinstance(value, str):
            raise self.wrong(field, f"must be a string, is {value!r}")
        return value

    def section(self, field: str) -> "ConfigFields | None":
        """Read a nested object; None when it is missing or null."""
        if not self.has(field):
            return None
        value = self._get(field)
        if not isinstance(value, Mapping):
            raise self.wrong(field, f"must be an object, is {value!r}")
        return ConfigFields(value, self.where, f"{self._prefix}{field}.")

    def texts(self, field: str) -> tuple[str, ...]:
        """Read a list of strings; empty when it is missing or null."""
        value = self._get(field) if self.has(field) else []
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.wrong(field, f"must be a list of strings, is {value!r}")
        return tuple(value)

    def token_ids(self, field: str, vocab: int) -> tuple[int, ...]:
        """Read a token id or a list of them; empty when it is missing or null."""
        value = self._get(field) if self.has(field) else []
        ids = value if isinstance(value, list) else [value]
        if any(isinstance(one, bool) or not isinstance(one, int) for one in ids):
            raise self.wrong(field, f"must be a token id or a list of them, is {value!r}")
        # Some published configs name ids beyond the vocabulary (-1, unused pads): they can never be drawn.
        return tuple(one for one in ids if 0 <= one < vocab)
