"""Every history in tests/scenarios/host causes what its file says."""

import sys
from pathlib import Path

import pytest
from host_script import HostScript

SCENARIOS = Path(__file__).parents[1] / "scenarios"
sys.path.append(str(SCENARIOS))

from scenario import play  # noqa: E402 - found by the line above


@pytest.mark.parametrize("path", sorted((SCENARIOS / "host").glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path, request):
    play(path, HostScript(), rewrite=request.config.getoption("--rewrite"))
