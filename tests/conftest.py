"""Fixtures that several parts of the suite share."""

import os
from pathlib import Path

import pytest
from hypothesis import settings
from served_stores import served_store

from llmhostd.demo.tiny import make_tiny_models
from llmhostd.loader.lease import why_not_leased

settings.register_profile("suite", deadline=None)
settings.load_profile("suite")
"""How long an example takes says something of the machine and its other users only."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Scenario files can be written from what they cause now."""
    parser.addoption("--rewrite", action="store_true", help="write what scenarios cause now into their files")


@pytest.fixture(scope="session")
def tiny_models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with every `TINY_MODELS` checkpoint, made once per test process. Tests only read it."""
    directory = tmp_path_factory.mktemp("tiny-models")
    make_tiny_models(directory)
    return directory


@pytest.fixture
def leases(tmp_path: Path) -> None:
    """For tests of what leases make possible: some file systems have none."""
    file = tmp_path / "leased"
    file.write_bytes(b"1")
    if why_not := why_not_leased(file, os.geteuid()):
        pytest.skip(f"no file can be leased in {tmp_path}: {why_not}")
    file.unlink()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Path:
    """What a server of files has: a store, `models/large`."""
    root = tmp_path_factory.mktemp("served")
    served_store(root, tiny_models_dir)
    return root
