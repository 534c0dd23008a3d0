"""Is what was heard and decided kept, bounded, without contents, and readable after anything?"""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from llmhostd.domain.actions import Refusal, RefuseRequest
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.events import ClockTicked, HostEvent
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import HardwareKey, InstanceId, NodeId, RequestId
from llmhostd.domain.reports import IterationReported, RowReport, TokenLogprobs
from llmhostd.host.keep_alive import KeepAlivePolicy
from llmhostd.host.policies import HostPolicies
from llmhostd.state.journal import Journal, MadeWith, Start, Step

NODE = NodeSpec(
    id=NodeId("cpu0"), engine="openvino", hardware_key=HardwareKey("h"), cores=(0,), memory_bytes=1 << 30
)  # fmt: skip
MADE_WITH = MadeWith(nodes=(NODE,), policies=HostPolicies(keep_alive=KeepAlivePolicy(keep_alive_s=7.0)))
PLENTY = 1 << 30


def begin(journal: Journal) -> int:
    return journal.begin(at_unix_s=1.5, version="1.2.3", mind="HostMind", made_with=MADE_WITH)


def ticks(count: int, first: int = 1) -> list[Step]:
    """Steps that zlib cannot make much of: each has its own reason."""
    return [
        Step(now=float(n), event=ClockTicked(), actions=(refusal(os.urandom(400).hex()),))
        for n in range(first, first + count)
    ]


def refusal(because: str) -> RefuseRequest:
    return RefuseRequest(
        request_id=RequestId("r"), refusal=Refusal.OVERLOADED, retry_after_s=1.0, expected_ttft_s=None, because=because
    )


def only(journal: Journal) -> Start:
    (start,) = journal.starts()
    return start


def test_what_was_appended_comes_back_in_order_with_what_the_mind_was_made_with(tmp_path: Path) -> None:
    steps = ticks(7)
    with closing(Journal(tmp_path)) as journal:
        number = begin(journal)
        journal.append(number, 1, steps[:3], PLENTY)
        journal.append(number, 4, steps[3:], PLENTY)
    with closing(Journal(tmp_path)) as journal:
        start = only(journal)
        assert (start.version, start.mind, start.made_with, start.first_kept) == ("1.2.3", "HostMind", MADE_WITH, 1)
        assert list(journal.steps(start)) == steps
        assert journal.extent(start) == (7, 6.0)


def test_contents_of_requests_are_counted_not_kept(tmp_path: Path) -> None:
    said = TokenLogprobs(chosen=-0.5, top=((424242, -0.5),))
    row = RowReport(request_id=RequestId("r"), prefilled=5, cached=2, tokens=(424242, 171717), logprobs=(said, said))
    event: HostEvent = IterationReported(
        node_id=NodeId("cpu0"), instance_id=InstanceId("i"), started_s=1.0, duration_s=0.5, predicted_s=0.4,
        rows=(row,), because="first",
    )  # fmt: skip
    with closing(Journal(tmp_path)) as journal:
        journal.append(begin(journal), 1, [Step(now=1.0, event=event)], PLENTY)
        (step,) = journal.steps(only(journal))
    kept = step.event
    assert isinstance(kept, IterationReported)
    assert kept.rows == (RowReport(request_id=RequestId("r"), prefilled=5, cached=2, tokens=(0, 0)),)
    assert (kept.duration_s, kept.because) == (0.5, "first")


def test_whole_earlier_histories_are_forgotten_first_then_the_beginning_of_the_running_one(tmp_path: Path) -> None:
    limit = 150_000
    with closing(Journal(tmp_path)) as journal:
        first, second, running = begin(journal), begin(journal), begin(journal)
        journal.append(first, 1, ticks(100), limit)
        journal.append(second, 1, ticks(100), limit)
        assert [start.number for start in journal.starts()] == [first, second, running]
        for sequence in range(1, 201, 20):
            journal.append(running, sequence, ticks(20, sequence), limit)
        kept = {start.number: start.first_kept for start in journal.starts()}
        assert list(kept) == [second, running]
        assert kept[running] == 1, "the running history is whole while others can go"
        for sequence in range(201, 601, 20):
            journal.append(running, sequence, ticks(20, sequence), limit)
        start = only(journal)
        assert start.first_kept > 1
        assert [step.now for step in journal.steps(start)] == [float(n) for n in range(start.first_kept, 601)]
        sizes = journal.file.stat().st_size
    assert sizes < 2 * limit


def test_a_file_that_is_no_journal_is_named(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"not a database, by far" * 100)
    with pytest.raises(OperatorError, match=r"journal\.db: file is not a database"):
        Journal(tmp_path)


def test_a_journal_of_another_format_or_of_words_that_are_gone_is_said(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:
        journal.append(begin(journal), 1, ticks(3), PLENTY)
    with closing(sqlite3.connect(tmp_path / "journal.db")) as db, db:
        db.execute("update starts set made_with = x'80'")
    with closing(Journal(tmp_path)) as journal, pytest.raises(OperatorError, match=r"of llmhostd 1\.2\.3: this"):
        journal.starts()
    with closing(sqlite3.connect(tmp_path / "journal.db")) as db:
        db.execute("pragma user_version = 99")
    with pytest.raises(OperatorError, match="format 99, not 1"):
        Journal(tmp_path)


WRITE_FOR_EVER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_journal import PLENTY, begin, ticks
from llmhostd.state.journal import Journal
journal = Journal(Path(sys.argv[1]))
number = begin(journal)
for sequence in range(1, 1 << 30, 5):
    journal.append(number, sequence, ticks(5, sequence), PLENTY)
    print(sequence, flush=True)
"""


def test_a_writer_that_is_killed_leaves_all_that_it_had_appended(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITE_FOR_EVER, str(tmp_path), here], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    told = [int(writer.stdout.readline()) for _ in range(30)]
    os.kill(writer.pid, signal.SIGKILL)
    told += [int(line) for line in writer.stdout.read().split()]
    writer.wait()
    writer.stdout.close()
    with closing(Journal(tmp_path)) as journal:
        numbers = [int(step.now) for step in journal.steps(only(journal))]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= told[-1] + 4


def test_a_journal_that_is_opened_again_knows_how_full_it_is(tmp_path: Path) -> None:
    limit = 150_000
    for _ in range(4):
        with closing(Journal(tmp_path)) as journal:
            journal.append(begin(journal), 1, ticks(150), limit)
    with closing(Journal(tmp_path)) as journal:
        assert [start.number for start in journal.starts()] == [3, 4]
        assert all(journal.extent(start) == (150, 149.0) for start in journal.starts())
