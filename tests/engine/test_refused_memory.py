"""What the engine does when memory is refused to it: it says so, keeps what it had, and never answers nonsense."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from llmhostd.demo.noise import make_checkpoint, noise_architecture
from llmhostd.domain.model import WeightFormat

PROBE = Path(__file__).parent / "refusal_probe.py"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("refused")
    whole = make_checkpoint(
        directory / "whole", noise_architecture("llama", layers=2, vocab=4000), weights=WeightFormat.BF16
    )
    broken = directory / "broken"
    broken.mkdir()
    for path in whole.iterdir():
        data = path.read_bytes()
        (broken / path.name).write_bytes(data[: len(data) // 2] if path.suffix == ".safetensors" else data)
    return whole, broken


@pytest.fixture(scope="module")
def report(folders: tuple[Path, Path]) -> dict[str, object]:
    return probe(folders, 2)


def probe(folders: tuple[Path, Path], threads: int) -> dict[str, object]:
    command = [sys.executable, str(PROBE), *map(str, folders), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_load_that_is_refused_memory_names_what_it_could_not_have(report: dict[str, object]) -> None:
    assert "cannot be read: Cannot allocate memory" in str(report["map"])
    assert str(report["reserve"]).startswith("EngineError: cannot reserve address space for")


def test_a_corrupt_file_is_named(report: dict[str, object]) -> None:
    assert str(report["corrupt"]).startswith("CheckpointError: ")
    assert "broken/model.safetensors" in str(report["corrupt"])


def test_an_iteration_that_is_refused_memory_is_no_answer(report: dict[str, object]) -> None:
    assert str(report["run"]).startswith("InstanceLostError: ")
    assert report["unchanged"] is True


def test_on_one_thread_where_the_engine_does_not_even_say_so_the_process_is_given_up(
    folders: tuple[Path, Path],
) -> None:
    assert str(probe(folders, 1)["run"]).startswith("ProcessLostError: the engine computed nothing")


def test_a_pool_larger_than_its_reservation_changes_nothing(report: dict[str, object]) -> None:
    assert str(report["too large"]).startswith("EngineError: 16777216 KV blocks do not fit")
    assert report["still"] == 64


def test_what_was_refused_is_given_back_and_a_new_instance_is_right(report: dict[str, object]) -> None:
    assert report["held after"] == 0
    assert int(str(report["given back"])) > 0
    assert report["right again"] is True
