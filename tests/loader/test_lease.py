"""Files that others write to, cut short, replace or delete while they are used where they lie."""

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from fetching import may_write, until
from hypothesis import given, settings
from hypothesis import strategies as st

from llmhostd.loader.lease import map_leased

pytestmark = pytest.mark.usefixtures("leases")
MANY = 40
WRITERS = {
    "truncate": "os.truncate(file, 100)",
    "open": "open(file, 'r+b').write(b'other')",
    "anew": "open(file, 'wb').write(b'other')",
    "append": "open(file, 'ab').write(b'other')",
    "copy": "shutil.copyfile('/proc/version', file)",
}
OTHERS = {
    "replace": "pathlib.Path(file + '.new').write_bytes(b'other'); os.replace(file + '.new', file)",
    "delete": "os.unlink(file)",
    "mode": "os.chmod(file, 0o400)",
    "read": "open(file, 'rb').read()",
    "link": "os.link(file, file + '.link')",
}


def elsewhere(what: str, file: Path) -> None:
    """Let another process do that to a file."""
    subprocess.run([sys.executable, "-c", f"import os, shutil, pathlib; file = {str(file)!r}; {what}"], check=True)


def descriptors(file: Path) -> int:
    return sum(os.path.realpath(one) == str(file.resolve()) for one in Path("/proc/self/fd").iterdir())


def filled(file: Path, size: int = 300_001) -> bytes:
    content = os.urandom(size)
    file.write_bytes(content)
    return content


@pytest.mark.parametrize("writer", WRITERS)
def test_a_writer_goes_on_and_what_was_mapped_stays(tmp_path: Path, writer: str) -> None:
    file = tmp_path / "weights"
    content = filled(file)
    view, leased = map_leased(file)
    elsewhere(WRITERS[writer], file)
    assert file.read_bytes() != content
    assert view[:] == content
    assert leased.memory.copied_bytes == 303_104  # whole pages
    elsewhere(WRITERS["anew"], file)
    assert file.read_bytes() == b"other"
    assert view[:] == content


@pytest.mark.parametrize("other", OTHERS)
def test_whoever_does_not_write_costs_nothing(tmp_path: Path, other: str) -> None:
    file = tmp_path / "weights"
    content = filled(file)
    view, leased = map_leased(file)
    elsewhere(OTHERS[other], file)
    assert not leased.broken
    assert leased.memory.copied_bytes == 0
    assert view[:] == content


def test_nobody_waits_for_what_nobody_has_mapped(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    content = filled(file)
    view, _ = map_leased(file)
    part = view[:10]
    del view
    assert not may_write(file)  # who does not wait is refused, and it steps aside
    until(lambda: may_write(file))
    assert part == content[:10]
    again, leased = map_leased(file)
    assert not leased.broken
    until(lambda: descriptors(file) == 1)
    del again
    until(lambda: may_write(file))
    until(lambda: not descriptors(file))
    assert part == content[:10]


def test_many_files_at_once_while_others_read_them(tmp_path: Path) -> None:
    files = [tmp_path / f"weights-{place}" for place in range(MANY)]
    contents = [filled(file) for file in files]
    mapped = [map_leased(file) for file in files]
    same, over = list[bool](), threading.Event()

    def look() -> None:
        while not over.is_set():
            same.append(all(view[:] == content for (view, _), content in zip(mapped, contents, strict=True)))

    reader = threading.Thread(target=look)
    reader.start()
    writers = [threading.Thread(target=os.truncate, args=(file, 0)) for file in files]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    over.set()
    reader.join()
    assert same
    assert all(same)
    assert all(view[:] == content for (view, _), content in zip(mapped, contents, strict=True))
    assert not any(file.stat().st_size for file in files)


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 200_000), left=st.integers(0, 300_000), order=st.permutations(["drop", "cut", "drop"]))
def test_pages_may_go_before_and_after(
    size: int, left: int, order: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("lease") / "weights"
    content = filled(file, size)
    view, leased = map_leased(file)
    for what in order:
        if what == "cut":
            os.truncate(file, left)
        else:
            leased.memory.drop_pages()
        assert view[:] == content
    assert leased.memory.copied_bytes == -(-size // 4096) * 4096


def test_what_somebody_has_open_for_writing_is_used_all_the_same_and_said_once(tmp_path: Path) -> None:
    said = alone(
        tmp_path,
        """
        for file in first, second:
            with file.open("r+b"):
                view, leased = map_leased(file)
                assert view[:] == file.read_bytes()
                leased.memory.drop_pages()
        first.write_bytes(b"other")
        """,
    )
    assert said.count("cannot be leased: somebody has it open for writing") == 1


def test_it_is_leased_as_soon_as_nobody_has_it_open_for_writing(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    content = filled(file)
    with file.open("r+b"):
        view, leased = map_leased(file)
        assert may_write(file)
    until(lambda: not may_write(file))
    elsewhere(WRITERS["truncate"], file)
    assert view[:] == content
    assert leased.memory.copied_bytes
    del view
    until(lambda: not descriptors(file))


def test_where_memory_is_short_the_writer_goes_on_and_the_next_file_is_copied(tmp_path: Path) -> None:
    said = alone(
        tmp_path,
        """
        large, _ = map_leased(first)
        small, leased = map_leased(second)
        (bytes_of,) = (int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize"))
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (bytes_of + (1 << 20), before[1]))
        os.truncate(first, 100)
        resource.setrlimit(resource.RLIMIT_AS, before)
        assert first.stat().st_size == 100
        os.truncate(second, 100)
        assert len(bytes(small)) == 300_001
        assert leased.memory.copied_bytes
        """,
    )
    assert f"{tmp_path / 'first'}: is written to, and what was loaded from it could not be copied before" in said


def alone(directory: Path, script: str) -> str:
    """Run a script in a process of its own, with a large and a small file; returns what the log said."""
    filled(directory / "first", 64 << 20)
    filled(directory / "second")
    lines = (
        "import os, pathlib, resource, logging",
        "from llmhostd.loader.lease import map_leased",
        "logging.basicConfig()",
        f"first, second = (pathlib.Path({str(directory)!r}) / name for name in ('first', 'second'))",
        textwrap.dedent(script),
    )
    ran = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stderr
