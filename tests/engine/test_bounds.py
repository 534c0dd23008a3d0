"""The engine touches nothing behind its weights, its caches and its adapters: they may end where a mapping does."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmhostd.demo.noise import make_checkpoint, noise_architecture
from llmhostd.domain.model import WeightFormat
from llmhostd.loader.convert import convert

PROBE = Path(__file__).parent / "bounds_probe.py"
SIZES = {"layers": 2, "hidden": 320, "heads": 5, "kv_heads": 1, "intermediate": 344, "vocab": 1003}
"""Nothing of it is a multiple of what kernels take at once, but a head."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("bounds")
    for kind in (WeightFormat.BF16, WeightFormat.F32):
        plain = make_checkpoint(directory / f"plain-{kind}", noise_architecture("qwen2", **SIZES), weights=kind)
        convert(plain, directory / kind)
    convert(directory / "plain-bf16", directory / "int8", WeightFormat.INT8)
    return {path.name: path for path in directory.iterdir()}


def probe(store: Path, *how: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, str(PROBE), str(store), *how], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("store", "compute", "kv", "room"),
    [
        ("bf16", "bf16", "u8", "none"),
        ("bf16", "bf16", "bf16", "room"),
        ("f32", "f32", "f32", "room"),
        ("int8", "f32", "u8", "none"),
    ],
)
def test_nothing_behind_them_is_touched(stores: dict[str, Path], store: str, compute: str, kv: str, room: str) -> None:
    done = probe(stores[store], compute, kv, room)
    assert done.returncode == 0, done.stderr[-2000:]
    in_place, packed = done.stdout.split()[:9], done.stdout.split()[9:]
    assert [float(one) for one in packed] == pytest.approx([float(one) for one in in_place], rel=0.02)
    assert min(map(float, in_place)) > 0


def test_the_fence_holds(stores: dict[str, Path]) -> None:
    done = probe(stores["bf16"], "bf16", "u8", "beyond")
    assert done.returncode == -signal.SIGSEGV
    assert done.stdout == "0\n"
