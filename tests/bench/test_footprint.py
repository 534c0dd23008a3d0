"""What does an idle box cost, and how soon is it ready?"""

import statistics
import time
from pathlib import Path

import pytest
from box import box
from process_use import process_use

IDLE_S = 20.0


def test_start_memory_and_idle_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ready = []
    for turn in range(4):
        with box(tmp_path / f"turn{turn}") as here:
            ready.append(here.ready_s)
            if turn < 3:
                continue
            pids = [here.process.pid, *here.worker_pids()]
            time.sleep(2)
            before = process_use(pids).cpu_s
            time.sleep(IDLE_S)
            busy = (process_use(pids).cpu_s - before) / IDLE_S
            held = [process_use([pid]).pss_bytes for pid in pids]
    with capsys.disabled():
        print(f"\nserve to ready: median {statistics.median(ready):.2f} s of {[round(one, 2) for one in ready]}")
        print(f"idle: {sum(held) / 1e6:.0f} MB PSS ({[round(one / 1e6) for one in held]}), {busy:.2%} CPU")
