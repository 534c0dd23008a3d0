import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmhostd.engines.huge_pages import with_huge_pages

PROBE = """
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
address, found, inside = libc.malloc(ctypes.c_size_t(64 << 20)), "", False
for line in open("/proc/self/smaps"):
    span = line.split()[0]
    if "-" in span:
        begin, end = (int(one, 16) for one in span.split("-"))
        inside = begin <= address < end
    elif inside and line.startswith("VmFlags:"):
        found = line
print("hg" in found.split())
"""


@pytest.mark.parametrize(
    ("said", "becomes"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.arena_max=2", "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
    ],
)
def test_what_a_user_says_stays(said: str | None, becomes: str) -> None:
    before = {"HOME": "/root"} | ({"GLIBC_TUNABLES": said} if said else {})
    assert with_huge_pages(before) == {"HOME": "/root", "GLIBC_TUNABLES": becomes}


def test_large_pieces_ask_for_huge_pages_where_the_kernel_lets_them() -> None:
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    offered = enabled.exists() and "[madvise]" in enabled.read_text()
    plain = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    for environment, asks in ((plain, False), (with_huge_pages(plain), offered)):
        done = subprocess.run(
            [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == str(asks)


def test_a_command_begins_again_once_with_the_same_words(tmp_path: Path) -> None:
    script = tmp_path / "command.py"
    script.write_text(
        "import os, sys\n"
        "from llmhostd.engines.huge_pages import begin_again_with_huge_pages\n"
        "before = os.environ.get('GLIBC_TUNABLES')\n"
        "begin_again_with_huge_pages()\n"
        "print(before, sys.argv[1:], sys.flags.dev_mode)\n"
    )
    plain = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    command = [sys.executable, "-X", "dev", str(script), "--state-dir", "a b"]
    done = subprocess.run(command, env=plain, capture_output=True, text=True, check=True)
    assert done.stdout == "glibc.malloc.hugetlb=1 ['--state-dir', 'a b'] True\n"
