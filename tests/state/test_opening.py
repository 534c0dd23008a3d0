"""May several commands open a state that none has opened before?"""

import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

from llmhostd.state.database import open_database
from llmhostd.state.migrations import MIGRATIONS, TABLE

PROCESSES, ROUNDS = 6, 10
fork = multiprocessing.get_context("fork")


def open_each(directories: list[Path], together: Barrier) -> None:
    for directory in directories:
        together.wait()
        open_database(directory).close()


def test_processes_that_open_a_new_state_at_once_all_succeed(tmp_path: Path) -> None:
    directories = [tmp_path / str(number) for number in range(ROUNDS)]
    for directory in directories:
        directory.mkdir()
    together = fork.Barrier(PROCESSES, timeout=30)
    processes = [fork.Process(target=open_each, args=(directories, together)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    for directory in directories:
        assert {row["name"] for row in open_database(directory)[TABLE].rows} == set(MIGRATIONS)
