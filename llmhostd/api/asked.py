"""What may an operator ask the host mind for? All of it is asked in one shape, and answered before it is done."""

from collections.abc import Callable

import msgspec
from litestar import delete, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, RawBody

from llmhostd.api.errors import decode_body
from llmhostd.api.injected import Host
from llmhostd.api.openapi import documented
from llmhostd.api.service import Moving, Service
from llmhostd.domain.ids import ModelName, NodeId, RequestId


class Accepted(msgspec.Struct):
    """It was asked for; `/api/v1/models`, `/api/v1/nodes` and the events say when it is done."""

    accepted: bool = True


class MoveTo(msgspec.Struct, forbid_unknown_fields=True):
    """Where to."""

    node: NodeId


_OPT = documented(errors=(404,))
_MOVE_OPT = documented(body=MoveTo, errors=(404,))


def _of_a_model(verb: str, summary: str, sentence: str, ask: Callable[[Service, ModelName], None]) -> HTTPRouteHandler:
    """Make `POST /api/v1/models/{name}/VERB`."""

    @post(
        f"/api/v1/models/{{name:str}}/{verb}", operation_id=f"{verb}_model", status_code=202, summary=summary,
        description=sentence, opt=_OPT,
    )  # fmt: skip
    async def handler(name: FromPath[str], service: Host) -> Accepted:
        ask(service, ModelName(name))
        return Accepted()

    return handler


@post(
    "/api/v1/models/{name:str}/release",
    operation_id="release_model",
    status_code=202,
    summary="Let a quarantined model try again",
    opt=_OPT,
)
async def release_model(name: FromPath[str], service: Host) -> Accepted:
    """After an operator looked at it."""
    await service.release(ModelName(name))
    return Accepted()


@post(
    "/api/v1/nodes/{node_id:str}/drain",
    operation_id="drain_node",
    status_code=202,
    summary="Empty a node",
    opt=_OPT,
)
async def drain_node(node_id: FromPath[str], service: Host) -> Accepted:
    """Nothing new goes there; what runs there moves elsewhere as its tokens, or ends there."""
    await service.drain(NodeId(node_id))
    return Accepted()


@delete(
    "/api/v1/nodes/{node_id:str}/drain",
    operation_id="end_drain_of_node",
    status_code=202,
    summary="Give a drained node back to the scheduler",
    opt=_OPT,
)
async def end_drain_of_node(node_id: FromPath[str], service: Host) -> Accepted:
    """Requests go there again."""
    await service.end_drain(NodeId(node_id))
    return Accepted()


@post(
    "/api/v1/requests/{request_id:str}/move",
    operation_id="move_request",
    status_code=202,
    summary="Let a live request go on on another node",
    opt=_MOVE_OPT,
)
async def move_request(request_id: FromPath[str], body: RawBody, service: Host) -> Moving:
    """Its caller does not notice: it stays where it is until its context is computed there.

    Sent to the node where it still is, it stays there.
    """
    return service.move(RequestId(request_id), decode_body(body, MoveTo).node)


@post(
    "/api/v1/models/{name:str}/move",
    operation_id="move_model",
    status_code=202,
    summary="Let all live requests of a model go on on one node",
    opt=_MOVE_OPT,
)
async def move_model(name: FromPath[str], body: RawBody, service: Host) -> Moving:
    """As for one request; those stay that could not be served there as they were promised."""
    return service.move_model(ModelName(name), decode_body(body, MoveTo).node)


ASKED = (
    _of_a_model(
        "load",
        "Load a model before anybody asks",
        "Where it fits.",
        lambda service, name: service.load(name),
    ),
    _of_a_model(
        "unload",
        "Unload a model's instances once they are idle",
        "Gives its memory back.",
        lambda service, name: service.unload(name),
    ),
    release_model,
    _of_a_model(
        "measure",
        "Measure again how long a model's iterations take",
        "On every node that has it, in the gaps of serving; loads it first where none has.",
        lambda service, name: service.measure(name),
    ),
    drain_node,
    end_drain_of_node,
    move_request,
    move_model,
)
"""All routes of this module."""
