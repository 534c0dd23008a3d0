"""What answers under which path?"""

from litestar import Litestar, MediaType, Response, Router, get
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from prometheus_client import CollectorRegistry

from llmhostd import __version__
from llmhostd.api import admin, openai
from llmhostd.api.asked import ASKED
from llmhostd.api.auth import Gate
from llmhostd.api.errors import error_response
from llmhostd.api.injected import Host, Registry, Serving
from llmhostd.api.metrics import CONTENT_TYPE, exposition
from llmhostd.api.openapi import WholeDocument
from llmhostd.api.policy import HttpPolicy
from llmhostd.api.service import Service
from llmhostd.api.stores import store_file
from llmhostd.api.transfers import Transfers

_BEHIND_GATE = (
    openai.chat_completions, openai.completions, openai.list_models, openai.get_model,
    admin.get_host, admin.list_model_states, admin.list_nodes, admin.list_instances, admin.list_requests,
    admin.get_kept_request, admin.forget_kept_request,
    admin.list_profiles, admin.get_usage, admin.register_model, admin.remove_model, admin.follow_decisions, *ASKED,
    store_file,
)  # fmt: skip


@get("/healthz", operation_id="healthz", summary="Whether the daemon answers", media_type=MediaType.TEXT)
async def healthz() -> str:
    """Say so."""
    return "ok\n"


@get("/readyz", operation_id="readyz", summary="Whether it serves", media_type=MediaType.TEXT, opt={"errors": (503,)})
async def readyz(service: Host) -> Response[str]:
    """503 with the reason until a node that may be used is up, and while draining."""
    why_not = service.ready()
    return Response(f"{why_not or 'ready'}\n", status_code=503 if why_not else 200, media_type=MediaType.TEXT)


@get("/metrics", operation_id="metrics", summary="For Prometheus", media_type=MediaType.TEXT)
async def metrics(registry: Registry) -> Response[bytes]:
    """Counters, histograms and gauges."""
    return Response(exposition(registry), media_type=CONTENT_TYPE)


def create_app(service: Service, policy: HttpPolicy, registry: CollectorRegistry) -> Litestar:
    """Compose the ASGI application."""
    gate, transfers = Gate(policy), Transfers(policy.max_store_transfers)
    serving = Serving(service, policy)
    gated = Router(path="/", route_handlers=[*_BEHIND_GATE, metrics], guards=[gate])
    described = Router(path="/schema", route_handlers=[], guards=[gate], include_in_schema=False)
    return Litestar(
        route_handlers=[gated, healthz, readyz],
        dependencies={
            "service": Provide(lambda: service, sync_to_thread=False),
            "transfers": Provide(lambda: transfers, sync_to_thread=False),
            "serving": Provide(lambda: serving, sync_to_thread=False),
            "registry": Provide(lambda: registry, sync_to_thread=False),
        },
        exception_handlers={Exception: error_response},
        request_max_body_size=policy.max_body_bytes,
        # One plugin of ours: without any, Litestar serves pages that load scripts from elsewhere.
        openapi_config=OpenAPIConfig(
            title="llmhostd", version=__version__, render_plugins=[WholeDocument()], openapi_router=described
        ),
        logging_config=None,
    )
