"""One engine per test process, and seeded checkpoints made once."""

from collections.abc import Callable
from pathlib import Path

import pytest
from goldens.families import CASES
from goldens.seeded import seeded_checkpoint
from llmhostd_openvino import open_engine
from llmhostd_openvino.engine import OpenVinoEngine

from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import HardwareKey, NodeId
from llmhostd.domain.model import ComputePrecision, KvPrecision
from llmhostd.engines.interface import Engine, EngineInstance, LoadOptions, ModuleRange
from llmhostd.loader.convert import convert

Load = Callable[..., EngineInstance]
NODE = NodeSpec(
    id=NodeId("cpu0"), engine="openvino", hardware_key=HardwareKey("test"), cores=(0, 1), memory_bytes=1 << 30
)


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The engine of a node of 2 cores and 1 GiB."""
    return open_engine(NODE)


@pytest.fixture
def new_engine() -> Engine:
    """One that has loaded nothing yet."""
    return open_engine(NODE)


@pytest.fixture(scope="module")
def layered() -> OpenVinoEngine:
    """An engine that makes a part of every layer."""
    return OpenVinoEngine(NODE, part_bytes=1)


@pytest.fixture
def store_of(checkpoint_of: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """Convert a golden case for loading and return the store."""

    def make(name: str) -> Path:
        convert(checkpoint_of(name), tmp_path / name)
        return tmp_path / name

    return make


@pytest.fixture(scope="session")
def checkpoint_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Make (once) and return the directory of a golden case."""
    directory = tmp_path_factory.mktemp("goldens")
    cases = {case.name: case for case in CASES}

    def make(name: str) -> Path:
        case = cases[name]
        if not (directory / name).exists():
            seeded_checkpoint(directory / name, case.config, case.seed, case.dtype, case.shards)
        return directory / name

    return make


@pytest.fixture
def load(engine: Engine, checkpoint_of: Callable[[str], Path]) -> Load:
    """Load a golden case (by name) or a directory, in f32 unless told otherwise."""

    def loaded(
        what: str | Path,
        compute: ComputePrecision = ComputePrecision.F32,
        kv: KvPrecision = KvPrecision.F32,
        modules: ModuleRange | None = None,
    ) -> EngineInstance:
        path = checkpoint_of(what) if isinstance(what, str) else what
        return engine.load(path, LoadOptions(compute=compute, kv=kv, threads=2, modules=modules))

    return loaded
