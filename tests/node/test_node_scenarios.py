"""Every history in tests/scenarios/node causes what its file says."""

import sys
from pathlib import Path

import pytest
from node_script import NodeScript

SCENARIOS = Path(__file__).parents[1] / "scenarios"
sys.path.insert(0, str(SCENARIOS))

from scenario import play  # noqa: E402 - found by the line above

FILES = sorted((SCENARIOS / "node").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_causes_what_the_file_says(path, pytestconfig):
    play(path, NodeScript(), rewrite=pytestconfig.getoption("--rewrite"))
