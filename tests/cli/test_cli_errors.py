"""What goes wrong is one line and an exit status, never a traceback."""

import subprocess
from pathlib import Path

import pytest
from typed_commands import COMMAND, llmhostd, refused


def test_a_misspelt_command_names_the_nearest() -> None:
    done = llmhostd("moduls")
    assert done.returncode == 2
    assert "there is no command 'moduls'; did you mean 'models'?" in done.stderr


@pytest.mark.parametrize(
    "command",
    [("ps",), ("run", "m", "hi"), ("models", "load", "m"), ("models", "unload", "m"), ("models", "release", "m")],
    ids=" ".join,
)
def test_what_needs_a_daemon_says_how_to_start_one(tmp_path: Path, command: tuple[str, ...]) -> None:
    assert refused("--state-dir", tmp_path, *command, status=1) == (
        f"no daemon is running on {tmp_path}: start one with `llmhostd serve`, or give --state-dir or --url"
    )


def test_a_url_that_nobody_answers_is_never_replaced_by_another_daemon() -> None:
    said = refused("--url", "127.0.0.1:9", "ps", status=1)
    assert said.startswith("the daemon on http://127.0.0.1:9 does not answer: ")


def test_settings_that_are_wrong_name_the_file_and_the_nearest_key(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[http]\nprot = 1\n")
    said = refused("--config", file, "models", "list", status=1)
    assert said == f"{file}: http.prot: there is no such setting; did you mean `http.port`?"


def test_doctor_ends_a_question_as_one(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[http]\nprot = 1\n")
    assert llmhostd("--config", file, "doctor").stdout.rstrip().endswith("did you mean `http.port`?")


def test_top_wants_a_terminal(tmp_path: Path) -> None:
    assert refused("--state-dir", tmp_path, "top", status=1).startswith("top draws on a terminal, and there is none")


def test_an_empty_prompt(tmp_path: Path) -> None:
    assert refused("--state-dir", tmp_path, "run", "m", status=2) == "the prompt is empty"


def test_a_socket_of_a_dead_daemon_is_no_daemon(tmp_path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "llmhostd.sock"))
    assert "no daemon is running" in refused("--state-dir", tmp_path, "ps", status=1)


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    command = [*COMMAND, "--state-dir", str(tmp_path), "doctor"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == ""
