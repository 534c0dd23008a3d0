"""Is a best-effort call that was accepted ever lost, whatever ends the daemon?"""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from daemon_process import EXACT, PATIENT, DaemonProcess

from llmhostd.state.database import open_database

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LONG = {
    "model": "tiny-llama", "max_tokens": 400, "ignore_eos": True, "temperature": 0, "service_tier": "flex",
}  # fmt: skip
SETTINGS = EXACT + PATIENT + "[flex]\nsave_s = 0.05\n"


def question(number: int, **more: Any) -> dict[str, Any]:
    return LONG | {"messages": [{"role": "user", "content": f"number {number}"}]} | more


CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "one": (CHAT, question(0)),
    "two": (CHAT, question(1, n=2)),
    "drawn": (CHAT, question(2, temperature=1.0, seed=5, n=2, stop=["qqq"])),
    "logprobs": (CHAT, question(3, logprobs=True)),
    "texts": (TEXT, LONG | {"prompt": ["one", "two"], "max_tokens": 300}),
}


def until(condition: Callable[[], object], timeout_s: float = 60) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "it did not come to that"
        time.sleep(0.01)


def kept(daemon: DaemonProcess, name: str) -> dict[str, Any]:
    answer = daemon.http.get(f"/api/v1/requests/{name}")
    return answer.json() if answer.status_code == 200 else {"done": False, "tokens_out": 0, "error": answer.text}


def under_way(daemon: DaemonProcess) -> bool:
    """Whether all calls have said something. Asked at once: they do not go on for long."""
    said = [row["tokens_out"] for row in daemon.http.get("/api/v1/requests").json()]
    return (
        len(said) == sum(body.get("n", 1) * len(body.get("prompt", "1")) for _, body in CALLS.values())
        and min(said) > 20
    )


class CutOff(threading.Thread):
    """Asks, and is cut off by the daemon's end."""

    def __init__(self, daemon: DaemonProcess, name: str, call: tuple[str, dict[str, Any]] | None = None) -> None:
        super().__init__()
        self.daemon_url, self.name, self.call = daemon.url, name, call or CALLS[name]
        self.outcome: httpx.Response | httpx.TransportError | None = None
        self.start()

    def run(self) -> None:
        path, body = self.call
        try:
            headers = {"X-Request-Id": self.name}
            self.outcome = httpx.post(f"{self.daemon_url}{path}", json=body, headers=headers, timeout=60)
        except httpx.TransportError as error:
            self.outcome = error


def choices(answer: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What was said, in which tokens, and why it ended; not to the last bit of a log-probability."""
    return [
        (
            one["index"], one.get("message") or one.get("text"), one["finish_reason"],
            one["logprobs"] and [position["bytes"] for position in one["logprobs"]["content"]],
        )
        for one in answer["choices"]
    ]  # fmt: skip


def asked_undisturbed(daemon: DaemonProcess) -> dict[str, dict[str, Any]]:
    answers = {name: daemon.http.post(path, json=body) for name, (path, body) in CALLS.items()}
    assert {one.status_code for one in answers.values()} == {200}
    for one in answers.values():  # what its caller has is not kept
        assert daemon.http.get(f"/api/v1/requests/{one.json()['id']}").status_code == 404
    return {name: one.json() for name, one in answers.items()}


def check_kept(daemon: DaemonProcess, expected: dict[str, dict[str, Any]]) -> None:
    for name, undisturbed in expected.items():
        until(lambda name=name: kept(daemon, name)["done"])  # type: ignore[misc]
        found = kept(daemon, name)
        assert (found["status"], found["caller_id"]) == (200, name)
        assert choices(found["answer"]) == choices(undisturbed)
        for tokens in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert found["answer"]["usage"][tokens] == undisturbed["usage"][tokens]
        assert found["tokens_out"] == found["answer"]["usage"]["completion_tokens"]
        assert found["answer"]["id"] == found["id"]
        assert kept(daemon, found["id"]) == found


def test_calls_that_kills_cut_off_end_as_undisturbed_and_wait_for_who_asks(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    state = tmp_path / "state"
    with DaemonProcess(state, [tiny_models_dir / "tiny-llama"], settings=SETTINGS) as daemon:
        expected = asked_undisturbed(daemon)
        running = [CutOff(daemon, name) for name in CALLS]
        until(lambda: under_way(daemon))
        os.kill(daemon.process.pid, signal.SIGKILL)
        for one in running:
            one.join()
            assert isinstance(one.outcome, httpx.TransportError)
    with DaemonProcess(state, settings=SETTINGS) as daemon:  # killed again while it goes on
        until(lambda: kept(daemon, "two")["tokens_out"] > 100 or kept(daemon, "two")["done"])
        os.kill(daemon.process.pid, signal.SIGKILL)
    with DaemonProcess(state, settings=f'{SETTINGS}[[nodes]]\nmemory = "1 MiB"\n') as daemon:  # nor is there memory now
        until(lambda: daemon.http.get("/api/v1/requests").json())
        until(lambda: all("error" not in kept(daemon, name) for name in CALLS))
        (phase,) = {one["phase"] for one in daemon.http.get("/api/v1/requests").json()}
        assert phase == "queued"
        body = CALLS["one"][1] | {"service_tier": "default"}
        assert daemon.http.post(CHAT, json=body).status_code == 400
    with DaemonProcess(state, settings=SETTINGS) as daemon:
        check_kept(daemon, expected)
        assert "Traceback" not in daemon.log
        assert daemon.http.delete("/api/v1/requests/texts").status_code == 204
        gone = daemon.http.get("/api/v1/requests/texts")
        assert gone.status_code == 404
        assert "there is no best-effort call 'texts'" in gone.json()["error"]["message"]


def test_a_stop_in_good_order_says_that_the_call_is_kept(tmp_path: Path, tiny_models_dir: Path) -> None:
    settings = SETTINGS + "[daemon]\ndrain_timeout_s = 0.0\n"
    with DaemonProcess(tmp_path / "state", [tiny_models_dir / "tiny-llama"], settings=settings) as daemon:
        expected = {"two": daemon.http.post(CHAT, json=CALLS["two"][1]).json()}
        running = CutOff(daemon, "two")
        until(lambda: kept(daemon, "two")["tokens_out"] > 20)
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.wait() == 0
        running.join()
        assert isinstance(running.outcome, httpx.Response)
        assert running.outcome.status_code == 503
        assert "the request is kept and goes on when it starts again" in running.outcome.json()["error"]["message"]
    with DaemonProcess(tmp_path / "state", settings=settings) as daemon:
        check_kept(daemon, expected)


def test_what_can_not_go_on_says_why_and_what_was_answered_is_forgotten(tmp_path: Path, tiny_models_dir: Path) -> None:
    state = tmp_path / "state"
    models = [tiny_models_dir / name for name in ("tiny-llama", "tiny-qwen3")]
    with DaemonProcess(state, models, settings=SETTINGS) as daemon:
        answered = daemon.http.post(CHAT, json=CALLS["one"][1] | {"max_tokens": 3})
        call_id = answered.json()["id"]
        assert answered.headers["x-request-id"] == call_id
        until(lambda: daemon.http.get(f"/api/v1/requests/{call_id}").status_code == 404)
        running = CutOff(daemon, "one")
        until(lambda: kept(daemon, "one")["tokens_out"] > 20)
        assert daemon.http.delete("/api/v1/models/tiny-llama").status_code == 204
        os.kill(daemon.process.pid, signal.SIGKILL)
        running.join()
    with DaemonProcess(state, settings=SETTINGS) as daemon:
        until(lambda: kept(daemon, "one")["done"])
        found = kept(daemon, "one")
        assert found["status"] == 404
        assert found["answer"]["error"]["message"].startswith("there is no model 'tiny-llama'")


def test_a_stream_says_its_name_at_once_and_whoever_hangs_up_gives_up(tmp_path: Path, tiny_models_dir: Path) -> None:
    with DaemonProcess(tmp_path / "state", [tiny_models_dir / "tiny-llama"], settings=SETTINGS) as daemon:
        with daemon.http.stream("POST", CHAT, json=question(0, stream=True)) as stream:
            call_id = stream.headers["x-request-id"]
            assert f'"id":"{call_id}"' in next(line for line in stream.iter_lines() if line.startswith("data: "))
            assert not kept(daemon, call_id)["done"]
        until(lambda: daemon.http.get(f"/api/v1/requests/{call_id}").status_code == 404)
        until(lambda: daemon.http.get("/api/v1/requests").json() == [])


def test_nobodys_promise_is_written_to_disk(tmp_path: Path, tiny_models_dir: Path) -> None:
    with DaemonProcess(tmp_path / "state", [tiny_models_dir / "tiny-llama"], settings=SETTINGS) as daemon:
        body = question(0, stream=True, service_tier="default")
        with daemon.http.stream("POST", CHAT, json=body, headers={"X-Request-Id": "waits"}) as stream:
            assert stream.status_code == 200
            assert daemon.http.get("/api/v1/requests/waits").status_code == 404


def test_the_queue_goes_on_in_order_of_arrival(tmp_path: Path, tiny_models_dir: Path) -> None:
    settings = SETTINGS + "[best_effort]\nmost_per_node = 1\n"
    names = ["q3", "q1", "q4", "q2"]
    with DaemonProcess(tmp_path / "state", [tiny_models_dir / "tiny-llama"], settings=settings) as daemon:
        running = []
        for name in names:
            running.append(CutOff(daemon, name, (CHAT, question(0, max_tokens=150))))
            until(lambda name=name: "id" in kept(daemon, name))  # type: ignore[misc]
        os.kill(daemon.process.pid, signal.SIGKILL)
        for one in running:
            one.join()
    with DaemonProcess(tmp_path / "state", settings=settings) as daemon:
        until(lambda: all(kept(daemon, name)["done"] for name in names))
    with open_database(tmp_path / "state") as db:
        ended = [row["caller_id"] for row in db["flex_calls"].rows_where(order_by="ended_at")]
    assert ended == names
