"""Do operators see and change what the daemon holds?"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from daemon_process import DaemonProcess
from prometheus_client.parser import text_string_to_metric_families
from repeated import repeated

HELLO = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


def until(condition: Callable[[], object], timeout_s: float = 120) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "it did not come to that"
        time.sleep(0.02)


def state_of(daemon: DaemonProcess, name: str) -> str:
    rows = {row["name"]: row for row in daemon.http.get("/api/v1/models").json()}
    return rows[name]["state"] if name in rows else "gone"


@pytest.fixture
def extra(daemon: DaemonProcess, tiny_models_dir: Path) -> Iterator[str]:
    """A fourth model, registered over HTTP, gone after the test."""
    body = {"name": "extra", "path": str(tiny_models_dir / "tiny-qwen2"), "ttft_s": 30.0, "kv": "u8"}
    answer = daemon.http.post("/api/v1/models", json=body)
    assert answer.status_code == 201, answer.text
    assert answer.json()["slo"] == {"ttft_s": 30.0, "tpot_s": 5.0}
    assert answer.json()["kv"] == "u8"
    yield "extra"
    if daemon.http.delete("/api/v1/models/extra").status_code == 204:
        until(lambda: state_of(daemon, "extra") == "gone")


def test_model_goes_from_cold_over_loaded_to_gone(daemon: DaemonProcess, extra: str) -> None:
    assert state_of(daemon, extra) == "cold"
    assert daemon.http.post(f"/api/v1/models/{extra}/load").status_code == 202
    until(lambda: state_of(daemon, extra) in ("warm", "resident"))
    instances = [row for row in daemon.http.get("/api/v1/instances").json() if row["model"] == extra]
    assert [row["node_id"] for row in instances] == ["cpu0"]
    until(lambda: any(row["shape_key"].startswith("qwen2") for row in
                      daemon.http.get("/api/v1/profiles").json()))  # fmt: skip
    assert daemon.http.post(f"/api/v1/models/{extra}/unload").status_code == 202
    until(lambda: state_of(daemon, extra) == "cold")
    assert daemon.http.post(f"/api/v1/models/{extra}/release").status_code == 202
    assert daemon.http.delete(f"/api/v1/models/{extra}").status_code == 204
    until(lambda: state_of(daemon, extra) == "gone")
    assert daemon.http.post("/v1/chat/completions", json=HELLO | {"model": extra}).status_code == 404


@pytest.mark.parametrize("path", ["load", "unload", "release", "measure"])
def test_unknown_model_is_404_everywhere(daemon: DaemonProcess, path: str) -> None:
    answer = daemon.http.post(f"/api/v1/models/tiny-qwen4/{path}")
    assert answer.status_code == 404
    assert "did you mean 'tiny-qwen3'" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"name": "a b", "path": "/x"}, "name", "name: is 'a b'; expected up to 100 letters"),
        ({"name": "a", "path": "relative"}, "path", "path: is 'relative'; expected an absolute path"),
        ({"name": "a", "path": "/nowhere"}, None, "/nowhere: is not a directory with a checkpoint"),
        ({"name": "a", "path": "/x", "ttft_s": 0}, "ttft_s", "ttft_s: is 0.0; expected seconds above 0"),
        ({"name": "a", "pth": "/x"}, "pth", "pth: is not a field that is known here; did you mean 'path'?"),
    ],
)
def test_wrong_registration_is_named(daemon: DaemonProcess, body: object, param: str | None, message: str) -> None:
    answer = daemon.http.post("/api/v1/models", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert answer.json()["error"]["message"].startswith(message)


def test_precisions_that_would_fail_at_the_load_are_refused_at_once(
    daemon: DaemonProcess, tiny_models_dir: Path
) -> None:
    body = {"name": "never", "path": str(tiny_models_dir / "tiny-qwen2"), "compute": "f32", "kv": "bf16"}
    answer = daemon.http.post("/api/v1/models", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "kv")
    assert answer.json()["error"]["message"].startswith("kv: bf16 does not go with compute f32; choose f32 or u8")
    assert state_of(daemon, "never") == "gone"


def test_usage_counts_what_was_asked_a_moment_ago(daemon: DaemonProcess) -> None:
    def counted(**query: str) -> dict[str, dict[str, int]]:
        return {row["model"]: row for row in daemon.http.get("/api/v1/usage", params=query).json()}

    before = counted().get("tiny-qwen3", {"requests": 0, "prompt_tokens": 0, "output_tokens": 0})
    asked = daemon.http.post("/v1/chat/completions", json=HELLO | {"model": "tiny-qwen3"}).json()["usage"]
    total = counted()["tiny-qwen3"]
    assert total["requests"] - before["requests"] == 1
    assert total["prompt_tokens"] - before["prompt_tokens"] == asked["prompt_tokens"]
    assert total["output_tokens"] - before["output_tokens"] == asked["completion_tokens"]
    assert total["day"] == ""
    by_day = counted(per="day", since="2026-01-01")["tiny-qwen3"]
    assert by_day["requests"] <= total["requests"]
    assert by_day["day"] > "2026-01-01"
    assert counted(since="9999-01-01") == {}


@pytest.mark.parametrize("since", ["yesterday", "2026-02-30"])
def test_a_day_that_is_none_is_named(daemon: DaemonProcess, since: str) -> None:
    answer = daemon.http.get("/api/v1/usage", params={"since": since})
    assert answer.status_code == 400
    assert f"since: is '{since}'; expected a day such as 2026-01-31" in answer.json()["error"]["message"]


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_unknown_node_names_the_nearest(daemon: DaemonProcess, method: str) -> None:
    answer = daemon.http.request(method, "/api/v1/nodes/cpu9/drain")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "there is no node 'cpu9'; did you mean 'cpu0'?"


def test_node_and_host_say_how_they_are(daemon: DaemonProcess) -> None:
    (node,) = daemon.http.get("/api/v1/nodes").json()
    assert (node["id"], node["engine"], node["up"], node["restarts"]) == ("cpu0", "openvino", True, 0)
    before = daemon.http.get("/api/v1/host").json()
    daemon.http.post("/v1/chat/completions", json=HELLO | {"model": "tiny-llama"})
    after = daemon.http.get("/api/v1/host").json()
    assert after["requests"] == before["requests"] + 1
    assert after["finished"] == before["finished"] + 1
    assert after["slo_met"] == before["slo_met"] + 1
    assert 0 < after["tokens_out"] - before["tokens_out"] <= 4


def test_live_requests_are_shown_and_gone_at_their_end(daemon: DaemonProcess) -> None:
    body = HELLO | {"model": "tiny-llama", "max_tokens": 400, "stream": True, "ignore_eos": True}
    with daemon.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        (row,) = daemon.http.get("/api/v1/requests").json()
        assert (row["model"], row["max_tokens"], row["phase"]) == ("tiny-llama", 400, "decode")
        assert row["tokens_out"] >= 1
        assert list(lines)[-2] == "data: [DONE]"
    assert daemon.http.get("/api/v1/requests").json() == []


def test_events_tell_every_decision_with_its_reason(daemon: DaemonProcess) -> None:
    body = HELLO | {"model": "tiny-llama"}
    # Of iterations the events tell a sample, which one short answer may miss; and what was not yet measured is a guess.
    with (
        daemon.http.stream("GET", "/api/v1/events") as feed,
        repeated(lambda _: daemon.http.post("/v1/chat/completions", json=body).raise_for_status()),
    ):
        lines = feed.iter_lines()
        seen, last, run = [], 0, ""
        for line in lines:
            run = line.removeprefix("id: ").partition("-")[0] if line.startswith("id: ") else run
            if line.startswith("data: "):
                seen.append(json.loads(line.removeprefix("data: ")))
                assert seen[-1]["sequence"] > last
                last = seen[-1]["sequence"]
                submits = [one for one in seen if one["kind"] == "SubmitRequest" and "first token in" in one["because"]]
                if submits and seen[-1]["kind"] == "IterationReported":
                    break
    submit = submits[-1]
    assert submit["subject"].startswith("req-")
    assert submit["node_id"] == "cpu0"
    with daemon.http.stream("GET", "/api/v1/events", headers={"Last-Event-ID": f"{run}-{last - 1}"}) as feed:
        assert next(iter(feed.iter_lines())) == f"id: {run}-{last}"


def test_metrics_count_by_model(daemon: DaemonProcess) -> None:
    daemon.http.post("/v1/chat/completions", json=HELLO | {"model": "tiny-mistral"})
    text = daemon.http.get("/metrics").text
    samples = {
        (
            sample.name,
            sample.labels.get("model"),
            sample.labels.get("outcome") or sample.labels.get("kind"),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["llmhostd_ttft_seconds_count", "tiny-mistral", None] >= 1
    assert samples["llmhostd_tokens_total", "tiny-mistral", "output"] >= 1
    assert sum(value for (name, model, _), value in samples.items()
               if name == "llmhostd_requests_total" and model == "tiny-mistral") >= 1  # fmt: skip


def test_schema_describes_every_path_that_answers(daemon: DaemonProcess) -> None:
    document = daemon.http.get("/schema").json()
    assert document["openapi"].startswith("3.1")
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/api/v1/models", "/api/v1/events", "/metrics",
            "/healthz", "/readyz"} <= set(document["paths"])  # fmt: skip
    for path, item in document["paths"].items():
        if "get" in item and "{" not in path and "events" not in path:
            assert daemon.http.get(path).status_code == 200


def test_unix_socket_answers_the_same(daemon: DaemonProcess) -> None:
    transport = httpx.HTTPTransport(uds=str(daemon.state_dir / "llmhostd.sock"))
    with httpx.Client(transport=transport, base_url="http://any.name.at.all") as http:
        assert http.get("/v1/models").json() == daemon.http.get("/v1/models").json()
        assert http.get("/readyz").text == "ready\n"
    assert (daemon.state_dir / "llmhostd.sock").stat().st_mode & 0o777 == 0o600
