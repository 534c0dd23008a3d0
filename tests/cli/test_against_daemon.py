"""Commands against a real daemon with a real engine and tiny models."""

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from daemon_process import PATIENT
from typed_commands import COMMAND, llmhostd, refused

pytestmark = pytest.mark.timeout(180)


class Served:
    """A daemon on a state directory of its own."""

    def __init__(self, state: Path, url: str) -> None:
        self.state = state
        self.url = url

    def typed(self, *arguments: str | Path, stdin: str = "") -> str:
        done = llmhostd("--state-dir", self.state, *arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def served(tiny_models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    state = tmp_path_factory.mktemp("state")
    settings = state / "settings.toml"
    settings.write_text(f"{PATIENT}[[nodes]]\nmemory = '2 GiB'\n")
    command = [*COMMAND, "--config", str(settings), "--state-dir", str(state), "serve", "--port", "0"]
    log = state / "log.txt"
    with log.open("w") as stderr, subprocess.Popen(command, stderr=stderr, text=True) as process:
        try:
            daemon = Served(state, ready_url(process, log))
            daemon.typed("models", "add", tiny_models_dir / "tiny-llama")
            daemon.typed("models", "add", tiny_models_dir / "tiny-qwen3-bf16", "--ttft", "1.5")
            yield daemon
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


def ready_url(process: "subprocess.Popen[str]", log: Path) -> str:
    """Where it serves, once it says so."""
    while process.poll() is None:
        if found := re.search(r"serving \d+ models on (http://\S+)", log.read_text()):
            return found[1]
        time.sleep(0.02)
    raise AssertionError(log.read_text())


def test_a_model_answers_and_the_same_for_the_same_seed(served: Served) -> None:
    asked = ("run", "tiny-llama", "--max-tokens", "8", "--seed", "3", "Say something")
    assert served.typed(*asked) == served.typed(*asked) != ""


def test_a_prompt_from_stdin_is_continued_raw(served: Served) -> None:
    raw = ("run", "tiny-llama", "--raw", "--max-tokens", "4", "--temperature", "0")
    assert served.typed(*raw, stdin="one two three") == served.typed(*raw, "one two three")


def test_stats_go_to_stderr(served: Served) -> None:
    done = llmhostd("--state-dir", served.state, "run", "tiny-llama", "--max-tokens", "5", "--stats", "hello")
    assert re.fullmatch(r"\d+ prompt tokens, \d output tokens; first after \d+ ms, then [\d.]+ tokens/s\n", done.stderr)


def test_a_misspelt_model_names_the_nearest(served: Served) -> None:
    for command in (("run", "tiny-lama", "hi"), ("models", "load", "tiny-lama"), ("models", "rm", "tiny-lama")):
        assert "did you mean 'tiny-llama'?" in refused("--state-dir", served.state, *command, status=2)


def test_ps_shows_nodes_and_instances(served: Served) -> None:
    served.typed("run", "tiny-llama", "--max-tokens", "2", "hi")
    shown = served.typed("ps")
    assert re.search(r"^cpu0 +up +cpu ", shown, re.MULTILINE)
    assert re.search(r"^tiny-llama@cpu0#\d+ +resident ", shown, re.MULTILINE)
    whole = json.loads(served.typed("ps", "--json"))
    assert whole["nodes"][0]["memory_bytes"] == 2 << 30
    assert [one["model"] for one in whole["instances"]].count("tiny-llama") == 1


def test_models_are_listed_with_their_states_over_either_door(served: Served) -> None:
    served.typed("run", "tiny-llama", "--max-tokens", "2", "hi")
    over_socket = served.typed("models", "list")
    over_tcp = llmhostd("--url", served.url, "models", "list").stdout
    for shown in (over_socket, over_tcp):
        rows = {line.split()[0]: line.split() for line in shown.splitlines()[1:]}
        assert rows["tiny-llama"][-1] == "resident"
        assert rows["tiny-qwen3-bf16"][1] == "qwen3"


def test_models_come_and_go_while_it_runs(served: Served, tiny_models_dir: Path) -> None:
    served.typed("models", "add", tiny_models_dir / "tiny-mistral", "--name", "guest")
    assert served.typed("run", "guest", "--max-tokens", "2", "hi")
    assert "goes when it is idle" in served.typed("models", "unload", "guest")
    assert re.fullmatch(
        r"guest is gone; its copy in .*/models/guest is deleted .*\n", served.typed("models", "rm", "guest")
    )
    assert "there is no model 'guest'" in refused("--state-dir", served.state, "run", "guest", "hi", status=2)


def test_a_profile_is_measured_in_the_daemon_and_shown(served: Served) -> None:
    shown = served.typed("profile", "tiny-qwen3-bf16")
    assert re.search(r"^qwen3-2x64-bf16\S* +tiny-qwen3-bf16 .* tok/s", shown, re.MULTILINE)


def test_what_was_measured_is_measured_again(served: Served) -> None:
    def measured() -> int:
        (model,) = [one for one in httpx.get(f"{served.url}/api/v1/models").json() if one["name"] == "tiny-llama"]
        return model["measured"]

    served.typed("profile", "tiny-llama")
    before = measured()
    assert before >= 1
    served.typed("profile", "tiny-llama")
    assert measured() == before + 1


def test_usage_is_counted_and_kept_for_a_daemon_that_is_not_there(served: Served) -> None:
    served.typed("run", "tiny-llama", "--max-tokens", "2", "hi")
    shown = served.typed("usage")
    assert re.search(r"^tiny-llama +[1-9]\d* +\d+ +0 ", shown, re.MULTILINE)
    rows = json.loads(served.typed("usage", "--per", "day", "--json"))
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", row["day"]) for row in rows)
    assert "expected a day such as" in refused("--state-dir", served.state, "usage", "--since", "then", status=2)


def test_a_drained_node_takes_nothing_until_it_is_given_back(served: Served) -> None:
    assert "cpu0: drains" in served.typed("drain", "cpu0")
    assert re.search(r"^cpu0 +draining ", served.typed("ps"), re.MULTILINE)
    assert "did you mean 'cpu0'?" in refused("--state-dir", served.state, "drain", "cpu", status=2)
    assert served.typed("drain", "cpu0", "--end") == "cpu0: is used again\n"
    assert served.typed("run", "tiny-llama", "--max-tokens", "2", "hi")


def test_verifying_would_disturb_the_daemon(served: Served) -> None:
    said = refused("--state-dir", served.state, "profile", "--verify", status=1)
    assert "computes on the same cores: stop it" in said


def test_doctor_knows_that_the_port_is_ours(served: Served) -> None:
    done = llmhostd("--state-dir", served.state, "doctor")
    assert "2 model(s)" in done.stdout
    assert "✗" not in done.stdout


def test_bench_finds_the_models_itself(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    done = llmhostd(
        "bench", served.url, "--requests", "8", "--rate", "20", "--input-tokens", "60", "--output-tokens", "4",
        "--ignore-eos", "--json", file,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    requests = json.loads(file.read_text())["requests"]
    assert {one["planned"]["model"] for one in requests} <= {"tiny-llama", "tiny-qwen3-bf16"}
    completed = [one for one in requests if one["outcome"] == "completed"]
    assert len(completed) + sum(one["outcome"] == "refused" for one in requests) == 8
    assert all(one["completion_tokens"] == 4 and abs(one["prompt_tokens"] - 60) <= 12 for one in completed)


def test_a_second_daemon_is_refused(served: Served) -> None:
    said = refused("--state-dir", served.state, "serve", "--port", "0", status=1)
    assert "in use by another llmhostd" in said


def test_top_shows_the_node_and_ends_with_a_key(served: Served) -> None:
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    command = [*COMMAND, "--state-dir", str(served.state), "top"]
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    shown = b""
    try:
        while b"cpu0" not in shown:
            shown += os.read(controller, 65536)
        os.write(controller, b"q")
        with contextlib.suppress(OSError):  # the terminal's other end closes when the program ends
            while os.read(controller, 65536):
                pass
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(controller)
