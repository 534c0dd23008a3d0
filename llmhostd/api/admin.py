"""What do the terminal, the command line and an operator's scripts call?"""

from typing import Annotated, Literal

from litestar import delete, get, post
from litestar.params import FromPath, HeaderParameter, QueryParameter, RawBody
from litestar.types import ASGIApp

from llmhostd.api.errors import decode_body
from llmhostd.api.injected import Host, HostAndPolicy
from llmhostd.api.openapi import documented
from llmhostd.api.respond import EventFeed
from llmhostd.api.service import KeptCall, ModelRegistration
from llmhostd.domain.ids import ModelName
from llmhostd.domain.profile import Profile
from llmhostd.domain.snapshot import (
    Decision,
    HostSnapshot,
    InstanceSnapshot,
    ModelSnapshot,
    NodeSnapshot,
    RequestSnapshot,
    UsageRow,
)


@get("/api/v1/host", operation_id="get_host", summary="The daemon itself")
async def get_host(service: Host) -> HostSnapshot:
    """Counts since it started."""
    return service.host()


@get("/api/v1/models", operation_id="list_model_states", summary="Models, with states and promises")
async def list_model_states(service: Host) -> list[ModelSnapshot]:
    """By name."""
    return service.models()


@get("/api/v1/nodes", operation_id="list_nodes", summary="Nodes, with their memory and load")
async def list_nodes(service: Host) -> list[NodeSnapshot]:
    """In the order of the configuration."""
    return service.nodes()


@get("/api/v1/instances", operation_id="list_instances", summary="Loaded models")
async def list_instances(service: Host) -> list[InstanceSnapshot]:
    """In order of loading."""
    return service.instances()


@get("/api/v1/requests", operation_id="list_requests", summary="Live requests, least headroom first")
async def list_requests(service: Host) -> list[RequestSnapshot]:
    """Finished ones are in the metrics only."""
    return service.requests()


@get(
    "/api/v1/requests/{call_id:str}",
    operation_id="get_kept_request",
    summary="A best-effort call, and its answer if its connection ended before",
    opt=documented(errors=(404,)),
)
async def get_kept_request(call_id: FromPath[str], service: Host) -> KeptCall:
    """By the id of its completion, or by the `X-Request-Id` that its caller gave it."""
    return await service.kept(call_id)


@delete(
    "/api/v1/requests/{call_id:str}",
    operation_id="forget_kept_request",
    status_code=204,
    summary="Cancel a best-effort call, or drop its answer",
    opt=documented(errors=(404,)),
)
async def forget_kept_request(call_id: FromPath[str], service: Host) -> None:
    """Whoever still waits for it gets what there is."""
    await service.forget(call_id)


@get("/api/v1/profiles", operation_id="list_profiles", summary="Measured profiles")
async def list_profiles(service: Host) -> list[Profile]:
    """Of every (model shape, hardware) pair."""
    return service.profiles()


@post(
    "/api/v1/models",
    operation_id="register_model",
    status_code=201,
    summary="Add a model, or replace the one of that name",
    opt=documented(body=ModelRegistration),
)
async def register_model(body: RawBody, service: Host) -> ModelSnapshot:
    """Reads and checks the checkpoint in a directory of this machine; its weights stay where they are."""
    return await service.register(decode_body(body, ModelRegistration))


@delete(
    "/api/v1/models/{name:str}",
    operation_id="remove_model",
    status_code=204,
    summary="Forget a model",
    opt=documented(errors=(404,)),
)
async def remove_model(name: FromPath[str], service: Host) -> None:
    """What runs, runs to its end; files stay."""
    await service.remove(ModelName(name))


@get("/api/v1/usage", operation_id="get_usage", summary="How much each model was used", opt=documented(errors=(400,)))
async def get_usage(
    service: Host,
    per: Annotated[
        Literal["day", "total"], QueryParameter(description="A row per model and day (UTC), or per model.")
    ] = "total",
    since: Annotated[str, QueryParameter(description="First day that counts, as 2026-01-31; empty: all.")] = "",
) -> list[UsageRow]:
    """Kept for ever, across restarts; what happened in the last seconds is in it. By day, then by model."""
    return await service.usage(per_day=per == "day", since=since)


@get(
    "/api/v1/events",
    operation_id="follow_decisions",
    summary="Decisions and their reasons, as server-sent events",
    opt=documented(answer=Decision, streams=True),
)
async def follow_decisions(
    serving: HostAndPolicy,
    last_event_id: Annotated[str, HeaderParameter(name="Last-Event-ID", description="Go on behind this event.")] = "",
) -> ASGIApp:
    """The last ones first, then each as it is made; what nodes ran is sampled."""
    return EventFeed(serving.service.subscribe(last_event_id), serving.policy.first_byte_s)
