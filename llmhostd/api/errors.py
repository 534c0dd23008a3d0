"""Which status and which words does each error get? One table; everything leaves in OpenAI's shape."""

import http
import logging
import math
import re
from typing import Any, TypeVar

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException

from llmhostd.api.nearest import nearest
from llmhostd.api.service import RefusedError
from llmhostd.domain.actions import Refusal
from llmhostd.domain.errors import (
    CallerError,
    CheckpointError,
    LlmhostdError,
    OperatorError,
    UnknownModelError,
    UnknownNameError,
)

_Body = TypeVar("_Body")

log = logging.getLogger(__name__)


class Estimate(msgspec.Struct):
    """What a refused caller may expect."""

    ttft_s: float | None
    retry_after_s: float


class ErrorDetail(msgspec.Struct):
    """OpenAI's words for what went wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None
    estimate: Estimate | None = None


class ErrorBody(msgspec.Struct):
    """Body of every answer that is not 2xx, and of an error in the middle of a stream."""

    error: ErrorDetail


class Problem(msgspec.Struct):
    """A status, its headers and its body."""

    status: int
    body: ErrorBody
    retry_after_s: float | None = None

    @property
    def headers(self) -> dict[str, str]:
        """`Retry-After` in whole seconds, rounded up: earlier would be refused again."""
        if self.retry_after_s is None:
            return {}
        return {"Retry-After": str(max(1, math.ceil(self.retry_after_s)))}


_REFUSALS = {
    Refusal.OVERLOADED: (429, "rate_limit_error"),
    Refusal.NO_MEMORY: (429, "rate_limit_error"),
    Refusal.UNAVAILABLE: (503, "server_error"),
    Refusal.MODEL_BROKEN: (503, "server_error"),
    Refusal.TOO_LARGE: (400, "invalid_request_error"),
}

_ERRORS: tuple[tuple[type[LlmhostdError], int, str, str], ...] = (
    (UnknownModelError, 404, "invalid_request_error", "model_not_found"),
    (UnknownNameError, 404, "invalid_request_error", "not_found"),
    (CallerError, 400, "invalid_request_error", "invalid_value"),
    (CheckpointError, 400, "invalid_request_error", "invalid_checkpoint"),
    (OperatorError, 400, "invalid_request_error", "operator_must_act"),
    (LlmhostdError, 500, "server_error", "engine_error"),
)
"""First match wins."""


def problem_of(error: BaseException) -> Problem:
    """Map any exception. What is not ours is logged with its traceback and told without it."""
    if isinstance(error, RefusedError):
        return _refused(error)
    if isinstance(error, LlmhostdError):
        status, kind, code = next((s, k, c) for cls, s, k, c in _ERRORS if isinstance(error, cls))
        param = "model" if isinstance(error, UnknownModelError) else getattr(error, "field", None)
        return _problem(status, str(error), kind, code, param)
    if isinstance(error, HTTPException) and error.status_code < 500:
        phrase = http.HTTPStatus(error.status_code).phrase.lower()
        return _problem(error.status_code, error.detail or phrase, "invalid_request_error", phrase.replace(" ", "_"))
    log.error("unexpected error", exc_info=error)
    return _problem(500, "internal error; the daemon's log has the details", "server_error", "internal_error")


def error_response(request: Request[Any, Any, Any], error: Exception) -> Response[ErrorBody]:
    """Answer in place of a handler that raised."""
    problem = problem_of(error)
    if problem.status == 404 and isinstance(error, HTTPException):
        problem.body.error.message = f"there is no {request.method} {request.url.path}; see /schema"
    elif problem.status == 405:
        problem.body.error.message = f"{request.url.path} does not answer {request.method}; see /schema"
    elif problem.status == 413:
        most = f"{request.app.request_max_body_size:,} bytes"
        problem.body.error.message = f"the body is larger than {most}, which is all that is taken (http.max_body_bytes)"
    headers = problem.headers | dict(getattr(error, "headers", None) or {})
    return Response(problem.body, status_code=problem.status, headers=headers, media_type="application/json")


def decode_body(raw: bytes, kind: type[_Body]) -> _Body:
    """Decode a JSON body strictly. Raises CallerError naming the field and, for a misspelt one, the nearest."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise _named(str(error), kind) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CallerError(f"the body is not JSON: {str(error) or 'nested too deeply'}") from error


def _named(message: str, kind: type) -> CallerError:
    """Say msgspec's complaint with the field in front, as a caller would write it."""
    text, _, place = message.partition(" - at ")
    # "`$.a.b`", or "`key` in `$.a`" for an object whose keys have a type.
    path = place.removeprefix("`key` in ").strip("`$.")
    field = re.match(r"Object (?:contains unknown|missing required) field `([^`]*)`", text)
    if field is None:
        return CallerError(f"{path or 'the body'}: {text[:1].lower()}{text[1:]}", field=path or None)
    whole = f"{path}.{field[1]}" if path else field[1]
    if "missing" in text:
        return CallerError(f"{whole}: is required", field=whole)
    hint = "" if path else nearest(field[1], getattr(kind, "__struct_encode_fields__", ()))
    return CallerError(f"{whole}: is not a field that is known here{hint}", field=whole)


def _refused(error: RefusedError) -> Problem:
    status, kind = _REFUSALS[error.refusal]
    problem = _problem(status, str(error), kind, error.refusal.value, None)
    if status in (429, 503):
        problem.retry_after_s = error.retry_after_s
        problem.body.error.estimate = Estimate(ttft_s=error.expected_ttft_s, retry_after_s=error.retry_after_s)
    return problem


def _problem(status: int, message: str, kind: str, code: str, param: str | None = None) -> Problem:
    return Problem(status, ErrorBody(ErrorDetail(message=message, type=kind, param=param, code=code)))
