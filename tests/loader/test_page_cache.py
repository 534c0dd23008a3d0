"""Is it told right where weights lie?"""

import os
from pathlib import Path

from llmhostd.domain.start import TierBytes
from llmhostd.loader.page_cache import drop, where_weights_lie

SIZE = 8 << 20


def test_weights_are_on_the_disk_until_somebody_reads_them(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        (tmp_path / name).write_bytes(os.urandom(SIZE))
        descriptor = os.open(tmp_path / name, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    (tmp_path / "tokenizer.json").write_bytes(bytes(SIZE))
    drop(tmp_path)
    assert where_weights_lie(tmp_path) == TierBytes(disk_bytes=2 * SIZE)
    (tmp_path / "a.safetensors").read_bytes()
    assert where_weights_lie(tmp_path) == TierBytes(memory_bytes=SIZE, disk_bytes=SIZE)


def test_of_what_is_not_there_nothing_is_told(tmp_path: Path) -> None:
    assert where_weights_lie(tmp_path / "nowhere") is None
    (tmp_path / "gone.safetensors").symlink_to(tmp_path / "nowhere")
    assert where_weights_lie(tmp_path) is None
