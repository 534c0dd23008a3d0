"""How do other hosts get this one's models? (Peers as a tier, ServerlessLLM §4.2.)"""

from typing import Annotated, Any

from litestar import HttpMethod, Request, route
from litestar.params import FromPath, HeaderParameter
from litestar.types import ASGIApp

from llmhostd.api.injected import Host, Transferring
from llmhostd.api.openapi import documented
from llmhostd.api.transfers import StoreFile
from llmhostd.domain.ids import ModelName


@route(
    "/api/v1/models/{name:str}/store/{file:str}",
    http_method=[HttpMethod.GET, HttpMethod.HEAD],
    operation_id=lambda _handler, method, _path: f"{method.lower()}_store_file",
    summary="A file of a model, for another host",
    description="What `llmhostd models add peer://HOST:PORT/NAME` fetches; whole, or one range of it.",
    status_code=200,
    opt=documented(file=True, errors=(404, 503)),
)
async def store_file(
    request: Request[None, None, Any],
    name: FromPath[str],
    file: FromPath[str],
    service: Host,
    transfers: Transferring,
    ranged: Annotated[str, HeaderParameter(name="Range", description="One range of bytes.")] = "",
    if_range: Annotated[str, HeaderParameter(name="If-Range", description="All of it unless this is its ETag.")] = "",
) -> ASGIApp:
    """Only of stores whose weights are all here, and of adapters."""
    directory = service.directory(ModelName(name))
    return StoreFile(directory, file, (ranged, if_range), transfers, head=request.method == HttpMethod.HEAD)
