"""Nodes that stand in for devices, and one small checkpoint for them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from goldens.families import CASES
from goldens.seeded import seeded_checkpoint
from stand_ins import FAST

from llmhostd.domain.hardware import NodeKind, NodeSpec
from llmhostd.domain.ids import HardwareKey, NodeId


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seeded Llama of a few layers."""
    case = next(case for case in CASES if case.name == "llama")
    folder = tmp_path_factory.mktemp("checkpoints") / case.name
    seeded_checkpoint(folder, case.config, case.seed, case.dtype, case.shards)
    return folder


@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[..., NodeSpec]:
    """Make a node whose times come from a file with these contents."""

    def make(contents: object = None, memory_bytes: int = 1 << 30) -> NodeSpec:
        file = tmp_path / "times.json"
        file.write_text(contents if isinstance(contents, str) else json.dumps(contents or {"roofline": FAST}))
        return NodeSpec(
            id=NodeId("gpu0"), engine="profiled", hardware_key=HardwareKey("profile/times/1"), cores=(0,),
            memory_bytes=memory_bytes, kind=NodeKind.GPU, block_tokens=16, threads=1, profile=str(file),
        )  # fmt: skip

    return make
