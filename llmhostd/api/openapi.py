"""What does the API say of itself? Litestar describes routes and parameters; bodies and streams are put in here.

Handlers decode their bodies themselves (strictly, with errors that name the field), so their schemas come from the same
structs that decode them. It is JSON only: a page that draws it would have to load its scripts from somewhere else.
"""

from typing import Any

import msgspec
from litestar import Litestar, MediaType, Request
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.routes import HTTPRoute

from llmhostd.api.errors import ErrorBody

_BYTES = "application/octet-stream"
_REF = "#/components/schemas/{name}"
_ERROR_STATUSES = {
    400: "The request is wrong; the error names the field.",
    401: "The API key is missing or unknown.",
    403: "A browser page from elsewhere asks.",
    404: "There is nothing of that name; the error names the nearest.",
    413: "The body is too large.",
    416: "The file has no such bytes.",
    429: "It could not be in time, or does not fit now: see Retry-After and the estimate.",
    500: "An engine failed at it.",
    503: "Draining, no node is up, or the model is broken.",
}


def documented(
    *,
    body: type | None = None,
    answer: type | None = None,
    streams: bool = False,
    file: bool = False,
    errors: tuple[int, ...] = (),
) -> dict[str, Any]:
    """Return a handler's `opt`: what Litestar cannot read off its signature."""
    statuses = {*errors, 401, 403}
    if body is not None:
        statuses |= {400, 413}
    if body is not None and streams:
        statuses |= {404, 429, 500}
    if streams:
        statuses |= {503}
    if file:
        statuses |= {416}
    return {"body": body, "answer": answer, "streams": streams, "file": file, "errors": tuple(sorted(statuses))}


class WholeDocument(JsonRenderPlugin):
    """`GET /schema` and `/schema/openapi.json`: the whole document, made once, when somebody first asks."""

    def __init__(self) -> None:
        super().__init__(media_type=MediaType.JSON)
        self._document: dict[str, Any] = {}

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:  # noqa: ARG002
        self._document = self._document or openapi_document(request.app)
        return msgspec.json.encode(self._document)


def openapi_document(app: Litestar) -> dict[str, Any]:
    """Return the whole document, JSON-ready."""
    document: dict[str, Any] = app.openapi_schema.to_schema()
    handlers = [(route.path_format, handler) for route in app.routes if isinstance(route, HTTPRoute)
                for handler in route.route_handlers if handler.resolve_include_in_schema()]  # fmt: skip
    kinds: list[type] = [ErrorBody]
    for _, handler in handlers:
        kinds += [kind for key in ("body", "answer") if (kind := handler.opt.get(key)) is not None]
    schemas, components = msgspec.json.schema_components(dict.fromkeys(kinds), ref_template=_REF)
    document.setdefault("components", {}).setdefault("schemas", {}).update(components)
    schema_of = dict(zip(dict.fromkeys(kinds), schemas, strict=True))
    for path, handler in handlers:
        for method in handler.http_methods:
            operation = document["paths"].get(path, {}).get(method.lower())
            if operation is not None:
                _complete(operation, handler.opt, schema_of, str(handler.status_code))
    return document


def _complete(operation: dict[str, Any], opt: dict[str, Any], schema_of: dict[type, Any], status: str) -> None:
    """Add to one operation what its handler's `opt` says."""
    responses = operation.setdefault("responses", {})
    body, answer = opt.get("body"), opt.get("answer")
    if body is not None:
        content = {"application/json": {"schema": schema_of[body]}}
        operation["requestBody"] = {"required": True, "content": content}
    if opt.get("streams"):
        streamed: dict[str, Any] = {"text/event-stream": {}}  # no schema says what events are
        if body is not None:
            streamed["application/json"] = {"schema": schema_of[answer]} if answer else {}
        responses[status]["content"] = streamed
    if opt.get("file"):
        content = {_BYTES: {"schema": {"type": "string", "format": "binary"}}}
        responses["200"]["content"] = content
        responses["206"] = {"description": "The range that was asked for.", "content": content}
    error = {"application/json": {"schema": schema_of[ErrorBody]}}
    # Litestar's own description of a wrong parameter has another shape than our errors.
    if "400" in responses:
        responses["400"] = {"description": _ERROR_STATUSES[400], "content": error}
    for one in opt.get("errors", (401, 403)):
        responses[str(one)] = {"description": _ERROR_STATUSES[one], "content": error}
