"""The reference engine as an installed plugin, found by workers through the same door as anyone's."""

import sys
from pathlib import Path

import pytest

RUNNER_TESTS = Path(__file__).parent.parent / "runner"
sys.path.insert(0, str(RUNNER_TESTS))


@pytest.fixture(autouse=True)
def reference_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "plugin" / "reference_engine-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reference-engine\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[llmhostd.engines]\nreference = reference_engine:open_engine\n")
    monkeypatch.setenv("PYTHONPATH", f"{info.parent}:{RUNNER_TESTS}", prepend=":")
