"""Do the configured nodes become what this machine has, and is every impossible one named?"""

from pathlib import Path

import pytest

from llmhostd.config import NodeSettings
from llmhostd.daemon.nodes import node_specs, parse_bytes
from llmhostd.devices.probe import memory_available_bytes, probe_cpu
from llmhostd.domain.errors import OperatorError

CPUINFO = "processor\t: 0\nmodel name\t: Some(R) CPU @ 2GHz\nflags\t\t: avx2 avx512_bf16\n\n"
GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with 10 GiB available; its cores are this process's."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(CPUINFO)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {16 * GIB // 1024} kB\nMemAvailable: {10 * GIB // 1024} kB\n")
    cache = tmp_path / f"sys/devices/system/cpu/cpu{probe_cpu().cores[0]}/cache"
    cache.mkdir(parents=True)
    return tmp_path


def test_by_default_one_node_has_all_cores_and_what_memory_is_free(root: Path) -> None:
    (node,) = node_specs((), root)
    assert (node.id, node.engine, node.cores) == ("cpu0", "openvino", probe_cpu().cores)
    assert node.memory_bytes == 9 * GIB
    assert "avx512_bf16" in node.hardware_key


def test_auto_nodes_share_what_others_leave(root: Path) -> None:
    cores = probe_cpu().cores
    if len(cores) < 2:
        wanted = [NodeSettings(id="a", cores=str(cores[0]), memory="3 GiB")]
        assert [node.memory_bytes for node in node_specs(wanted, root)] == [3 * GIB]
        return
    wanted = [
        NodeSettings(id="a", cores=str(cores[0]), memory="3 GiB"),
        NodeSettings(id="b", cores=str(cores[1])),
    ]
    first, second = node_specs(wanted, root)
    assert (first.memory_bytes, second.memory_bytes) == (3 * GIB, 6 * GIB)
    assert (first.cores, second.cores) == (cores[:1], cores[1:2])


MISTAKES = [
    ([NodeSettings(cores="4096")], r"nodes\[0\]\.cores: is '4096'; the daemon may use these cores only: "),
    ([NodeSettings(cores="a-b")], r"nodes\[0\]\.cores: is 'a-b'; expected `all` or a list"),
    ([NodeSettings(), NodeSettings()], r"nodes\[1\]\.id: 'cpu0' is taken by an earlier node"),
    ([NodeSettings(), NodeSettings(id="b")], r"nodes\[1\]\.cores: core \d+ belongs to cpu0 already"),
    ([NodeSettings(memory="lots")], r"nodes\[0\]\.memory: is 'lots'; expected `auto` or a size such as `24 GiB`"),
    ([NodeSettings(id="a b")], r"nodes\[0\]\.id: is 'a b'; expected letters"),
]


@pytest.mark.parametrize(("wanted", "complaint"), MISTAKES)
def test_impossible_node_is_named(root: Path, wanted: list[NodeSettings], complaint: str) -> None:
    with pytest.raises(OperatorError, match=complaint):
        node_specs(wanted, root)


def test_this_machine_has_a_node() -> None:
    (node,) = node_specs(())
    assert 0 <= node.memory_bytes <= memory_available_bytes()


@pytest.mark.parametrize(
    ("text", "expected"), [("1024", 1024), ("2 KiB", 2048), ("1.5GB", 3 * GIB // 2), (" 24 gib ", 24 * GIB)]
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_bytes(text, "x") == expected
