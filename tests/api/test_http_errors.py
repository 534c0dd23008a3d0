"""Does everything that is wrong come back as one clear line in OpenAI's shape?"""

import contextlib
import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from daemon_process import DaemonProcess

CHAT = "/v1/chat/completions"
HELLO = {"model": "tiny-llama", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


def error(answer: httpx.Response, status: int) -> dict[str, object]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) == {"error"}
    return body["error"]


def test_unknown_model_names_the_nearest(daemon: DaemonProcess) -> None:
    got = error(daemon.http.post(CHAT, json=HELLO | {"model": "tiny-lama"}), 404)
    assert got["message"] == "there is no model 'tiny-lama'; did you mean 'tiny-llama'?"
    assert (got["type"], got["param"], got["code"]) == ("invalid_request_error", "model", "model_not_found")


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (HELLO | {"temperature": "hot"}, "temperature", "temperature: expected `float | null`, got `str`"),
        (HELLO | {"tools": [{}]}, "tools", "tools: is not supported here"),
        ({"model": "tiny-llama"}, "messages", "messages: is required"),
        (HELLO | {"max_tokens": 600}, "max_tokens", "tiny-llama's context of 512 tokens; at most"),
        (
            HELLO | {"messages": [{"role": "user", "content": "word " * 600}]},
            "messages",
            "leave no room in tiny-llama's",
        ),
        (HELLO | {"logit_bias": {"9999": 1}}, "logit_bias", "logit_bias: token 9999 is not in 0..319"),
    ],
)
def test_wrong_field_is_named(daemon: DaemonProcess, body: object, param: str, message: str) -> None:
    got = error(daemon.http.post(CHAT, json=body), 400)
    assert got["param"] == param
    assert message in str(got["message"])


def test_wrong_prompt_is_named(daemon: DaemonProcess) -> None:
    for prompt, message in (([0, 320], "prompt: token 320 is not in 0..319"), ([], "prompt: expected `array`")):
        got = error(daemon.http.post("/v1/completions", json={"model": "tiny-llama", "prompt": prompt}), 400)
        assert str(got["message"]).startswith(message)


@pytest.mark.parametrize("raw", [b"", b"{", b"null", b"[]", b"\xff\xfe", b"[" * 50_000])
def test_what_is_not_json_is_said_so(daemon: DaemonProcess, raw: bytes) -> None:
    error(daemon.http.post(CHAT, content=raw), 400)


def test_body_over_the_limit_is_refused_with_and_without_its_length(daemon: DaemonProcess) -> None:
    huge = b" " * 9_000_000
    pieces = (huge[place : place + 100_000] for place in range(0, len(huge), 100_000))
    for content in (huge, pieces):
        got = error(daemon.http.post(CHAT, content=content), 413)
        assert got["type"] == "invalid_request_error"
        assert str(got["message"]).startswith("the body is larger than 8,388,608 bytes")


def test_unknown_path_and_method_are_named(daemon: DaemonProcess) -> None:
    got = error(daemon.http.get("/v1/nothing"), 404)
    assert got["message"] == "there is no GET /v1/nothing; see /schema"
    answer = daemon.http.get(CHAT)
    assert error(answer, 405)["message"] == f"{CHAT} does not answer GET; see /schema"
    assert set(answer.headers["allow"].split(", ")) == {"OPTIONS", "POST"}


def test_bytes_that_are_no_http_harm_nobody(daemon: DaemonProcess) -> None:
    address = httpx.URL(daemon.url)
    with socket.create_connection((address.host, address.port or 0), timeout=10) as wire:
        wire.sendall(b"\x16\x03\x01 this is not http\r\n\r\n")
        wire.recv(4096)
    assert daemon.http.get("/healthz").text == "ok\n"


def test_a_page_from_elsewhere_is_kept_out(daemon: DaemonProcess) -> None:
    error(daemon.http.post(CHAT, json=HELLO, headers={"Origin": "https://evil.example"}), 403)
    error(daemon.http.get("/v1/models", headers={"Host": "evil.example:11500"}), 403)
    assert daemon.http.get("/v1/models", headers={"Origin": "http://localhost:3000"}).status_code == 200


@contextlib.contextmanager
def added(daemon: DaemonProcess, path: Path) -> Iterator[str]:
    answer = daemon.http.post("/api/v1/models", json={"name": path.name, "path": str(path)})
    assert answer.status_code == 201, answer.text
    yield path.name
    assert daemon.http.delete(f"/api/v1/models/{path.name}").status_code == 204


def test_broken_template_is_told_by_model_and_line(
    daemon: DaemonProcess, tiny_models_dir: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "broken-template"
    shutil.copytree(tiny_models_dir / "tiny-llama", copy)
    (copy / "chat_template.jinja").write_text("{% for m in messages %}\n{{ m.content.nothing.more }}\n{% endfor %}")
    with added(daemon, copy) as name:
        got = error(daemon.http.post(CHAT, json=HELLO | {"model": name}), 503)
    assert str(got["message"]).startswith(f"model {name}: chat template line 2: ")
    assert got["code"] == "model_broken"


def test_checkpoint_that_breaks_after_it_was_added_is_told_and_others_go_on(
    daemon: DaemonProcess, tiny_models_dir: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "cut-short"
    shutil.copytree(tiny_models_dir / "tiny-llama", copy)
    with added(daemon, copy) as name:
        weights = copy / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:100_000])
        answer = daemon.http.post(CHAT, json=HELLO | {"model": name})
    got = error(answer, 503)
    assert "model.safetensors" in str(got["message"])
    assert int(answer.headers["retry-after"]) >= 1
    assert daemon.http.post(CHAT, json=HELLO).status_code == 200


def test_an_error_leaves_no_traceback_in_the_log(daemon: DaemonProcess) -> None:
    daemon.http.post(CHAT, content=b"{")
    assert "Traceback" not in daemon.log
    assert json.loads(daemon.http.post(CHAT, content=b"{").content)["error"]["estimate"] is None
