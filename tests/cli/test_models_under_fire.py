"""What becomes of `models add` and `models rm` when they are killed, raced, or meet a damaged disk?"""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from daemon_process import EXACT, PATIENT, DaemonProcess
from goldens.adapters import adapter_config, seeded_adapter
from goldens.seeded import seeded_checkpoint
from typed_commands import COMMAND, llmhostd

from llmhostd.loader.adapter_copy import is_adapter_copy
from llmhostd.loader.store_index import read_index
from llmhostd.loader.verify import verify
from llmhostd.state.database import open_database
from llmhostd.state.models import ModelTable

SIZES = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 320, "max_position_embeddings": 512,
}  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Path:
    path = seeded_checkpoint(tmp_path_factory.mktemp("fire") / "source", SIZES, 3)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).write_bytes((tiny_models_dir / "tiny-llama" / name).read_bytes())
    return path


def registered(state: Path) -> dict[str, Path]:
    with open_database(state) as db:
        return {str(one.name): Path(one.path) for one in ModelTable(db).all()}


def begun(*arguments: str | Path) -> "subprocess.Popen[str]":
    return subprocess.Popen([*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def told(process: "subprocess.Popen[str]") -> tuple[int, str]:
    out, error = process.communicate(timeout=120)
    assert "Traceback" not in error
    return process.returncode, (out + error).strip()


def test_an_add_that_is_killed_again_and_again_is_whole_in_the_end(tmp_path: Path, source: Path) -> None:
    chance, add = random.Random(5), ("--state-dir", tmp_path, "models", "add", source)
    made, killed = tmp_path / "models", 0
    for _ in range(4):
        process = begun(*add)
        end_s = time.monotonic() + chance.uniform(0.0, 0.4)
        while not (made / ".source.partial").exists() and not (made / "source").exists():
            time.sleep(0.005)
        time.sleep(max(0.0, end_s - time.monotonic()))
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        process.communicate()
        if (made / "source").exists():
            verify(made / "source", lambda *_: None)
    assert killed
    done = llmhostd(*add)
    assert (done.returncode, done.stdout) == (0, 'source is added: llmhostd run source "..."\n')
    assert registered(tmp_path) == {"source": made / "source"}
    verify(made / "source", lambda *_: None)
    assert [one.name for one in made.iterdir()] == ["source"]


def test_two_adds_of_one_name_do_not_mix_and_two_of_two_names_both_succeed(
    tmp_path: Path, source: Path, tiny_models_dir: Path
) -> None:
    add = ("--state-dir", tmp_path, "models", "add")
    names = [begun(*add, source, "--name", name) for name in ("one", "two")]
    same = [
        begun(*add, path, "--name", "same") for path in (tiny_models_dir / "tiny-llama", tiny_models_dir / "tiny-qwen3")
    ]
    assert [told(one) for one in names] == [
        (0, f'{name} is added: llmhostd run {name} "..."') for name in ("one", "two")
    ]
    ended = [told(one) for one in same]
    assert sorted(status for status, _ in ended) == [0, 1]
    said = next(line for status, line in ended if status)
    assert "is being made by another process" in said or "exists" in said
    assert said.count("\n") == 0
    assert registered(tmp_path).keys() == {"one", "two", "same"}
    winner = ("llama", "qwen3")[[status for status, _ in ended].index(0)]
    (row,) = [
        line for line in llmhostd("--state-dir", tmp_path, "models", "list").stdout.splitlines() if "same" in line
    ]
    assert row.split()[1] == winner


def test_two_adds_of_one_adapter_name_do_not_mix(tmp_path: Path, tiny_models_dir: Path) -> None:
    config = json.loads((tiny_models_dir / "tiny-llama" / "config.json").read_text())
    poets = [seeded_adapter(tmp_path / f"poet{seed}", config, seed, config=adapter_config()) for seed in (1, 2)]
    assert llmhostd("--state-dir", tmp_path, "models", "add", tiny_models_dir / "tiny-llama").returncode == 0
    add = ("--state-dir", tmp_path, "models", "add", "--name", "poet", "--base", "tiny-llama")
    both = [begun(*add, poet) for poet in poets]
    ended = [told(one) for one in both]
    assert sorted(status for status, _ in ended) == [0, 1], ended
    said = next(line for status, line in ended if status)
    assert "is being made by another process" in said or "exists" in said
    assert said.count("\n") == 0
    winner = poets[[status for status, _ in ended].index(0)]
    assert is_adapter_copy(tmp_path / "models" / "poet", winner)
    assert llmhostd("--state-dir", tmp_path, "models", "verify", "poet").stdout == "poet is whole\n"


def test_two_processes_never_make_the_copy_of_an_adapter_together(tmp_path: Path, tiny_models_dir: Path) -> None:
    """The narrow part of adding, by many at once: one copies, and what comes out is one adapter's, whole."""
    config = json.loads((tiny_models_dir / "tiny-llama" / "config.json").read_text())
    poets = [seeded_adapter(tmp_path / f"poet{seed}", config, seed, config=adapter_config()) for seed in range(4)]
    code = (
        "import sys; from pathlib import Path; from llmhostd.loader.adapter_copy import copy_adapter\n"
        "from llmhostd.domain.errors import OperatorError\n"
        "source, made = map(Path, sys.argv[1:]); done = 0\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "for turn in range(60):\n"
        "    try: copy_adapter(source, made / str(turn)); done += 1\n"
        "    except OperatorError: pass\n"
        "print(done)"
    )
    made = tmp_path / "made"
    command = [sys.executable, "-c", code]
    copying = [
        subprocess.Popen([*command, str(poet), str(made)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for poet in poets
    ]
    for one in copying:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in copying:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    assert sum(int(one.communicate(timeout=60)[0]) for one in copying) == 60
    assert sorted(int(one.name) for one in made.iterdir()) == list(range(60))
    for one in made.iterdir():
        assert any(is_adapter_copy(one, poet) for poet in poets)


def test_what_a_killed_copy_left_does_not_get_into_the_next(tmp_path: Path, tiny_models_dir: Path) -> None:
    config = json.loads((tiny_models_dir / "tiny-llama" / "config.json").read_text())
    poet = seeded_adapter(tmp_path / "poet", config, 1, config=adapter_config())
    for name in ("store", "adapter"):
        left = tmp_path / "models" / f".{name}.partial"
        left.mkdir(parents=True)
        for file in ("adapter_config.json", "chat_template.jinja", "remote.json"):
            (left / file).write_text("{}")
    add = ("--state-dir", tmp_path, "models", "add")
    assert llmhostd(*add, tiny_models_dir / "tiny-llama", "--name", "store").returncode == 0
    assert llmhostd(*add, poet, "--name", "adapter", "--base", "store").returncode == 0
    assert is_adapter_copy(tmp_path / "models" / "adapter", poet)
    names = {one.name for one in (tmp_path / "models" / "store").iterdir()}
    assert not names & {"adapter_config.json", "remote.json"}


def test_a_full_disk_is_one_line_and_changes_nothing(tmp_path: Path, source: Path) -> None:
    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000_000, 5_000_000))

    command = [*COMMAND, "--state-dir", str(tmp_path), "models", "add", str(source)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=little_room)
    assert ended.returncode == 1
    assert ended.stderr == f"llmhostd: {tmp_path}/models/source: cannot be written: File too large\n"
    assert list((tmp_path / "models").iterdir()) == []


def test_a_full_database_is_one_line_and_the_copy_is_taken_up(tmp_path: Path, tiny_models_dir: Path) -> None:
    add = ("--state-dir", tmp_path, "models", "add", tiny_models_dir / "tiny-llama")
    llmhostd(*add, "--name", "first")

    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    copy = tmp_path / "models" / "tiny-llama"
    llmhostd(*add, "--name", "tiny-llama")
    llmhostd("--state-dir", tmp_path, "models", "rm", "tiny-llama", "--keep-files")
    ended = subprocess.run(
        [*COMMAND, *map(str, add)], capture_output=True, text=True, check=False, preexec_fn=little_room
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("llmhostd: ")
    assert ended.stderr.count("\n") == 1
    assert "internal error" not in ended.stderr
    assert registered(tmp_path).keys() == {"first"}
    assert llmhostd(*add).returncode == 0
    assert registered(tmp_path)["tiny-llama"] == copy


def test_a_flipped_bit_is_found_at_load_and_named_to_whoever_asked_and_the_others_go_on(
    tmp_path: Path, source: Path, tiny_models_dir: Path
) -> None:
    state = tmp_path / "state"
    for path in (source, tiny_models_dir / "tiny-llama"):
        assert llmhostd("--state-dir", state, "models", "add", path).returncode == 0
    store = state / "models" / "source"
    block = read_index(store).blocks[-1]
    with (store / "weights.llmhostd").open("r+b") as file:
        file.seek(block.begin + 100)
        byte = file.read(1)[0]
        file.seek(block.begin + 100)
        file.write(bytes([byte ^ 1]))
    with DaemonProcess(state, settings=EXACT + PATIENT) as daemon:

        def ask(model: str) -> httpx.Response:
            body = {"model": model, "prompt": "a", "max_tokens": 3}
            return daemon.http.post("/v1/completions", json=body)

        refused = ask("source")
        assert refused.status_code == 503
        assert f"{store}/weights.llmhostd: block `{block.name}`, chunk 0" in refused.json()["error"]["message"]
        assert "is damaged" in refused.json()["error"]["message"]
        assert ask("tiny-llama").status_code == 200
        diagnosis = llmhostd("--state-dir", state, "doctor", "--json")
        assert (diagnosis.returncode, "source: loading source failed: " in diagnosis.stdout) == (1, True)
        assert "Traceback" not in daemon.log


def test_a_copy_goes_only_when_nothing_runs_on_it_any_more(tmp_path: Path, tiny_models_dir: Path) -> None:
    state = tmp_path / "state"
    assert llmhostd("--state-dir", state, "models", "add", tiny_models_dir / "tiny-llama").returncode == 0
    body = {"model": "tiny-llama", "prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with DaemonProcess(state, settings=EXACT + PATIENT) as daemon:
        with daemon.http.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            for pid in daemon.worker_pids():
                os.kill(pid, signal.SIGSTOP)
            removal = begun("--state-dir", state, "models", "rm", "tiny-llama")
            assert removal.stderr is not None
            assert removal.stderr.readline() == "its files go once nothing runs on tiny-llama any more\n"
            assert (state / "models" / "tiny-llama" / "weights.llmhostd").exists()
            for pid in daemon.worker_pids():
                os.kill(pid, signal.SIGCONT)
            assert list(lines)[-2] == "data: [DONE]"
        status, said = told(removal)
        assert (status, said.split(" (")[0]) == (
            0,
            f"tiny-llama is gone; its copy in {state}/models/tiny-llama is deleted",
        )
        assert not (state / "models" / "tiny-llama").exists()
