"""Who gets in when keys are configured?"""

import hashlib
from collections.abc import Iterator

import httpx
import openai
import pytest
from daemon_process import DaemonProcess

KEY = "a-long-and-random-key"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    settings = f"[http]\nhost = '127.0.0.1'\napi_keys = ['{hashlib.sha256(KEY.encode()).hexdigest()}']\n"
    with DaemonProcess(tmp_path_factory.mktemp("guarded"), settings=settings) as process:
        yield process


def test_the_right_key_opens_everything(guarded: DaemonProcess) -> None:
    client = openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=KEY)
    assert list(client.models.list()) == []
    named = {"Authorization": f"Bearer {KEY}", "Host": "box.example", "Origin": "https://chat.example"}
    assert guarded.http.get("/api/v1/nodes", headers=named).status_code == 200


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer", f"Basic {KEY}", KEY, "Bearer \xff"])
@pytest.mark.parametrize("path", ["/v1/models", "/api/v1/models", "/metrics", "/schema", "/api/v1/events"])
def test_any_other_key_opens_nothing(guarded: DaemonProcess, path: str, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    answer = guarded.http.get(path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["message"].startswith("the API key is missing or unknown")


def test_health_and_the_unix_socket_need_no_key(guarded: DaemonProcess) -> None:
    assert guarded.http.get("/healthz").status_code == 200
    assert guarded.http.get("/readyz").status_code == 200
    transport = httpx.HTTPTransport(uds=str(guarded.state_dir / "llmhostd.sock"))
    with httpx.Client(transport=transport, base_url="http://llmhostd") as http:
        assert http.get("/v1/models").status_code == 200
