"""Hundreds of copies of a busy daemon's state, and dozens of daemons that go on from them. MOMENTS=400 by default."""

import os
from pathlib import Path

import pytest
from moment_histories import live_and_die_often

from llmhostd.demo.tiny import make_tiny_models

EACH = 40
SEEDS = range(100, 100 + int(os.environ.get("MOMENTS", "400")) // EACH)


@pytest.mark.parametrize("seed", SEEDS)
def test_any_of_many_moments_may_be_the_last(tmp_path: Path, seed: int) -> None:
    make_tiny_models(tmp_path / "models")
    live_and_die_often(tmp_path, tmp_path / "models", seed, moments=EACH, next_runs=6)
