"""Does anything that the API's own description allows, or nearly allows, make the daemon fail or hang?"""

import json

import hypothesis
import pytest
import schemathesis
from daemon_process import DaemonProcess
from prometheus_client import CollectorRegistry
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from llmhostd.api.app import create_app
from llmhostd.api.openapi import openapi_document
from llmhostd.api.policy import HttpPolicy

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
ENDLESS = "/api/v1/events"

document = openapi_document(create_app(None, HttpPolicy(), CollectorRegistry()))  # type: ignore[arg-type]
schema = schemathesis.openapi.from_dict(document)
OPERATIONS = [
    (path, method, mode)
    for path, item in document["paths"].items()
    for method, operation in item.items()
    for mode in GenerationMode
    # Without a body or a parameter there is nothing that could be wrong about a call.
    if path != ENDLESS and (mode is GenerationMode.POSITIVE or "requestBody" in operation)
]


@schemathesis.hook
def map_body(context: schemathesis.HookContext, body: object) -> object:
    """Mostly ask for models that exist, and for short answers: what comes behind those checks is tried, too."""
    if isinstance(body, dict) and isinstance(body.get("model"), str) and len(body["model"]) % 4:
        body["model"] = ["tiny-llama", "tiny-qwen3", "tiny-mistral"][len(body["model"]) % 3]
    for field in ("max_tokens", "max_completion_tokens"):
        if isinstance(body, dict) and isinstance(body.get(field), int) and not isinstance(body[field], bool):
            body[field] = body[field] % 600
    return body


def test_the_daemon_describes_itself_as_its_code_does(daemon: DaemonProcess) -> None:
    assert daemon.http.get("/schema").json() == json.loads(json.dumps(document))


@pytest.mark.parametrize("path", ["/openapi", "/openapi/openapi.json", "/schema/swagger", "/schema/elements"])
def test_no_page_loads_scripts_from_elsewhere(daemon: DaemonProcess, path: str) -> None:
    answer = daemon.http.get(path)
    assert answer.status_code == 404
    assert "http" not in answer.text


@pytest.mark.parametrize(("path", "method", "mode"), OPERATIONS)
def test_every_answer_is_as_described(daemon: DaemonProcess, path: str, method: str, mode: GenerationMode) -> None:
    operation = schema[path][method]

    @hypothesis.given(operation.as_strategy(generation_mode=mode))
    @hypothesis.settings(
        max_examples=120 if "/v1/c" in path else 12,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def answer(case: schemathesis.Case) -> None:
        response = case.call(base_url=daemon.url, timeout=30)
        case.validate_response(response, checks=CHECKS)

    answer()


def test_the_daemon_still_serves_and_saw_nothing_unexpected(daemon: DaemonProcess) -> None:
    body = {"model": "tiny-llama", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    assert daemon.http.post("/v1/chat/completions", json=body).status_code == 200
    assert "Traceback" not in daemon.log
