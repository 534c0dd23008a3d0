"""Does the daemon begin clearly, refuse to begin clearly, and end without cutting anybody off?"""

import json
import os
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from daemon_process import COMMAND, EXACT, PATIENT, DaemonProcess
from typed_commands import llmhostd

LONG = {
    "model": "tiny-llama", "messages": [{"role": "user", "content": "go on"}], "max_tokens": 450, "ignore_eos": True,
    "temperature": 0,
}  # fmt: skip


def refused(tmp_path: Path, settings: str, *arguments: str) -> str:
    """What a daemon says that does not begin: one line, no traceback."""
    config = tmp_path / "refused.toml"
    config.write_text(settings)
    ended = subprocess.run(
        [*COMMAND, "--config", str(config), "--state-dir", str(tmp_path / "state"), "serve", *arguments],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode not in (0, -signal.SIGKILL), ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ("[http]\nprot = 1\n", "http.prot: there is no such setting; did you mean `http.port`?"),
        ("[http]\nhost = '0.0.0.0'\n", "http.host: 0.0.0.0 can be reached by others, and http.api_keys is empty"),
        (
            f"[http]\nhost = 'no.such.invalid'\napi_keys = ['{'a' * 64}']\n",
            "http.host: cannot listen on no.such.invalid:0:",
        ),
        ("[http]\napi_keys = ['secret']\n", "http.api_keys[0]: is not a SHA-256 in hex"),
        ("[[nodes]]\ncores = '4096'\n", "nodes[0].cores: is '4096'; the daemon may use these cores only"),
        ("[[nodes]]\nengine = 'openvin'\n", "openvin"),
    ],
)
def test_impossible_setting_is_one_clear_line(tmp_path: Path, settings: str, complaint: str) -> None:
    assert complaint in refused(tmp_path, settings, "--port", "0")


def test_port_in_use_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"http.port: 127.0.0.1:{port} is in use" in refused(tmp_path, "", "--port", str(port))


def test_second_daemon_on_the_same_state_is_told_the_first_ones_pid(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "state") as first:
        told = refused(tmp_path, "", "--port", "0")
        assert f"in use by another llmhostd (pid {first.process.pid})" in told
        assert first.http.get("/readyz").status_code == 200


def test_systemd_hears_ready_watchdog_and_stopping(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(30)
        with DaemonProcess(tmp_path / "state", environ={"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000"}) as daemon:
            heard = [manager.recv(4096).decode()]
            while not heard[-1].startswith("READY=1"):
                heard.append(manager.recv(4096).decode())
            assert f"STATUS=serving 0 models on {daemon.url}" in heard[-1]
            assert manager.recv(4096) == b"WATCHDOG=1"
            daemon.process.send_signal(signal.SIGTERM)
            while not heard[-1].startswith("STOPPING=1"):
                heard.append(manager.recv(4096).decode())
            assert daemon.wait() == 0


def test_told_to_stop_it_lets_running_answers_finish_and_refuses_new_ones(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    with DaemonProcess(tmp_path / "state", [tiny_models_dir / "tiny-llama"]) as daemon:
        whole = daemon.http.post("/v1/chat/completions", json=LONG).json()["choices"][0]["message"]["content"]
        # While its worker is stopped, nothing finishes: what is asked then is asked of a draining daemon.
        (worker,) = daemon.worker_pids()
        os.kill(worker, signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(daemon.http.post, "/v1/chat/completions", json=LONG | {"stream": True})
            while not daemon.http.get("/api/v1/requests").json():
                time.sleep(0.01)
            daemon.process.send_signal(signal.SIGTERM)
            while daemon.http.get("/readyz").text != "draining\n":
                time.sleep(0.01)
            late = daemon.http.post("/v1/chat/completions", json=LONG)
            seen = llmhostd("--url", daemon.url, "ps").stdout
            os.kill(worker, signal.SIGCONT)
        assert seen.startswith("the daemon stops soon: running requests end, new ones are refused\n")
        assert late.status_code == 503
        assert late.json()["error"]["message"] == "the daemon is draining: it stops soon"
        assert int(late.headers["retry-after"]) >= 1
        assert running.result().text.endswith("data: [DONE]\n\n")
        assert daemon.wait() == 0
        assert whole
    assert "Traceback" not in daemon.log


def test_an_answer_that_outlives_the_drain_ends_in_an_error_event(tmp_path: Path, tiny_models_dir: Path) -> None:
    slow = {"memory_bytes_per_s": 1e12, "operations_per_s": 1e14, "iteration_overhead_s": 0.3, "load_overhead_s": 0.01}
    (tmp_path / "slow.json").write_text(json.dumps({"roofline": slow}))
    settings = (
        f"{EXACT}{PATIENT}[daemon]\ndrain_timeout_s = 0.2\n[supervision]\nstop_timeout_s = 0.2\n"
        f"[[nodes]]\nid = 'gpu0'\nkind = 'gpu'\nengine = 'profiled'\nmemory = '1 GiB'\n"
        f"profile = '{tmp_path / 'slow.json'}'\n"
    )
    with DaemonProcess(tmp_path / "state", [tiny_models_dir / "tiny-llama"], settings=settings) as daemon:
        with daemon.http.stream("POST", "/v1/chat/completions", json=LONG | {"stream": True}) as answer:
            lines = answer.iter_lines()
            next(lines)
            for pid in daemon.worker_pids():
                os.kill(pid, signal.SIGSTOP)
            daemon.process.send_signal(signal.SIGTERM)
            last = [line for line in lines if line][-1]
        assert '"message":"the daemon stops"' in last
        assert daemon.wait() == 0


def test_state_and_usage_are_there_after_a_restart(tmp_path: Path, tiny_models_dir: Path) -> None:
    state = tmp_path / "state"
    with DaemonProcess(state, [tiny_models_dir / "tiny-llama"]) as daemon:
        body = {"name": "again", "path": str(tiny_models_dir / "tiny-qwen2")}
        assert daemon.http.post("/api/v1/models", json=body).status_code == 201
        daemon.http.post("/v1/chat/completions", json=LONG | {"max_tokens": 5})
        while not daemon.http.get("/api/v1/profiles").json():
            time.sleep(0.05)
    with DaemonProcess(state) as daemon:
        assert [row["id"] for row in daemon.http.get("/v1/models").json()["data"]] == ["again", "tiny-llama"]
        assert len(daemon.http.get("/api/v1/profiles").json()) == 1


def test_a_daemon_that_was_killed_leaves_no_worker_and_no_lock(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "state") as daemon:
        (worker,) = daemon.worker_pids()
        os.kill(daemon.process.pid, signal.SIGKILL)
        daemon.wait()
    deadline_s = time.monotonic() + 120
    while Path(f"/proc/{worker}/stat").exists() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not Path(f"/proc/{worker}/stat").exists()
    with DaemonProcess(tmp_path / "state") as again:
        assert again.http.get("/readyz").status_code == 200
