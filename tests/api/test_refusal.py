"""Is who cannot be served told so at once, with what to expect; and does who waits know that it waits?"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from daemon_process import EXACT, DaemonProcess

BODY = {
    "messages": [{"role": "user", "content": "go on"}], "max_tokens": 200, "ignore_eos": True, "temperature": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def strict(tiny_models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """`hasty` promises what no machine keeps; `patient` is the same model without that promise."""
    settings = f"{EXACT}[http]\nmax_live_requests = 6\nfirst_byte_s = 0.2\n[slo]\nttft_s = 60.0\ntpot_s = 5.0\n"
    with DaemonProcess(tmp_path_factory.mktemp("strict"), settings=settings) as process:
        for name, ttft_s in (("hasty", 1e-7), ("patient", None)):
            model = {"name": name, "path": str(tiny_models_dir / "tiny-llama"), "ttft_s": ttft_s}
            assert process.http.post("/api/v1/models", json=model).status_code == 201
        # A cold start is forgiven, so both must be there before promises count.
        for name in ("patient", "hasty"):
            body = BODY | {"model": name, "service_tier": "flex"}
            assert process.http.post("/v1/chat/completions", json=body).status_code == 200
        yield process


@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_in_time_is_429_with_an_estimate(strict: DaemonProcess, stream: bool) -> None:
    answer = strict.http.post("/v1/chat/completions", json=BODY | {"model": "hasty", "stream": stream})
    assert answer.status_code == 429, answer.text
    assert int(answer.headers["retry-after"]) >= 1
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "overloaded")
    assert error["estimate"]["ttft_s"] > 1e-7
    assert error["estimate"]["retry_after_s"] > 0
    assert "would come after" in error["message"]


def test_of_several_choices_all_are_refused_with_one(strict: DaemonProcess) -> None:
    answer = strict.http.post("/v1/chat/completions", json=BODY | {"model": "hasty", "n": 4})
    assert answer.status_code == 429
    assert strict.http.get("/api/v1/requests").json() == []


def test_best_effort_is_never_refused_for_being_late(strict: DaemonProcess) -> None:
    answer = strict.http.post("/v1/chat/completions", json=BODY | {"model": "hasty", "service_tier": "flex"})
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 200


class Stopped:
    """The worker does nothing meanwhile."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self._pids = daemon.worker_pids()

    def __enter__(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGCONT)


def test_more_than_may_live_are_refused_and_the_others_finish(strict: DaemonProcess) -> None:
    answers: list[httpx.Response] = []

    def ask() -> None:
        body = BODY | {"model": "patient", "n": 3, "max_tokens": 3}
        answers.append(httpx.post(f"{strict.url}/v1/chat/completions", json=body, timeout=60))

    callers = [threading.Thread(target=ask) for _ in range(3)]
    with Stopped(strict):
        for caller in callers:
            caller.start()
        while len(answers) < 1:
            time.sleep(0.01)
    for caller in callers:
        caller.join()
    assert [answer.status_code for answer in answers] == [429, 200, 200]
    assert answers[0].json()["error"]["message"] == "6 completions are under way already"


def test_a_stream_that_waits_says_so(strict: DaemonProcess) -> None:
    with Stopped(strict):
        stream = httpx.stream("POST", f"{strict.url}/v1/chat/completions", timeout=60,
                              json=BODY | {"model": "patient", "stream": True, "max_tokens": 5})  # fmt: skip
        answer = stream.__enter__()
        lines = (line for line in answer.iter_lines() if line)
        assert '"role":"assistant"' in next(lines)
        assert next(lines) == next(lines) == ": waiting for the first token"
    rest = [line for line in lines if not line.startswith(":")]
    stream.__exit__(None, None, None)
    assert rest[-1] == "data: [DONE]"
    assert any('"finish_reason":"length"' in line for line in rest)
