"""One daemon for all tests of the API that only talk to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_process import DaemonProcess

MODELS = ("tiny-llama", "tiny-qwen3", "tiny-mistral")


@pytest.fixture(scope="session")
def daemon(tiny_models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Three tiny models in f32, with promises that a busy machine keeps."""
    models = [tiny_models_dir / name for name in MODELS]
    with DaemonProcess(tmp_path_factory.mktemp("daemon"), models) as process:
        yield process
