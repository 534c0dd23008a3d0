"""Is a box split by what it is, do configured nodes become what it has, and is every impossible one named?"""

import sys
from pathlib import Path

import pytest
from recorded_machines import (
    BROADWELL,
    CORTEX_A72,
    GIB,
    GRAVITON3,
    ICE_LAKE,
    SAPPHIRE_RAPIDS,
    TURIN,
    record,
)

from llmhostd.config import NodeSettings
from llmhostd.daemon.node_defaults import look_at
from llmhostd.daemon.node_memory import parse_bytes
from llmhostd.daemon.nodes import NodeLayout, node_layout
from llmhostd.devices.acceleration import MatrixAcceleration, acceleration_of
from llmhostd.devices.domains import CpuSplit, DevicePolicy
from llmhostd.devices.gpus import GpuFacts, GpusFound
from llmhostd.devices.probe import memory_available_bytes, probe_cpu
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.hardware import NodeKind

NO_GPUS = GpusFound(gpus=(), state="none here")
H100 = GpuFacts(
    index=0, uuid="GPU-11111111-aaaa", name="NVIDIA H100 PCIe", memory_bytes=80 * GIB, free_bytes=70 * GIB,
    compute_capability="9.0", partitioned=False,
)  # fmt: skip
ONE_GPU = GpusFound(gpus=(H100,), state="driver 1 knows 1 GPU(s)")
TWO_SOCKETS = [("0-3", 64.0), ("4-7", 32.0)]


def layout(
    root: Path,
    *settings: NodeSettings,
    gpus: GpusFound = NO_GPUS,
    split: CpuSplit = CpuSplit.NUMA,
    required: MatrixAcceleration = MatrixAcceleration.DOT_PRODUCTS,
    cores: int = 8,
) -> NodeLayout:
    policy = DevicePolicy(cpu_nodes=split, require_matrix_acceleration=required)
    return node_layout(settings, policy, machine=look_at(root, tuple(range(cores)), gpus))


def test_a_box_of_one_domain_is_one_node_with_all_its_cores(tmp_path: Path) -> None:
    found = layout(record(tmp_path, TURIN, [("0-3", 16)], available_gib=10), cores=4)
    (node,) = found.nodes
    assert (node.id, node.engine, node.kind, node.cores, node.threads) == ("cpu0", "openvino", "cpu", (0, 1, 2, 3), 4)
    assert (node.memory_bytes, node.numa_domains, node.caveats) == (9 * GIB, (), ())
    assert (found.excluded, found.gpu_state) == ((), "none here")


def test_each_numa_domain_is_a_node_that_lives_out_of_its_own_memory(tmp_path: Path) -> None:
    first, second = layout(record(tmp_path, SAPPHIRE_RAPIDS, TWO_SOCKETS)).nodes
    assert [(one.id, one.cores, one.numa_domains) for one in (first, second)] == [
        ("cpu0", (0, 1, 2, 3), (0,)),
        ("cpu1", (4, 5, 6, 7), (1,)),
    ]
    for node, gib in ((first, 64), (second, 32)):
        assert node.memory_bytes == pytest.approx(gib * GIB * 0.9, rel=1e-3)
        assert [pool.domain for pool in node.memory_pools] == [None, node.numa_domains[0]]


def test_a_control_groups_limit_is_shared_in_proportion_to_the_domains(tmp_path: Path) -> None:
    limit = {"memory.max": str(30 * GIB), "memory.current": "0"}
    first, second = layout(record(tmp_path, SAPPHIRE_RAPIDS, TWO_SOCKETS, groups=limit)).nodes
    assert first.memory_bytes == pytest.approx(18 * GIB, rel=1e-3)
    assert second.memory_bytes == pytest.approx(9 * GIB, rel=1e-3)


def test_sockets_and_the_whole_box_can_be_nodes_too(tmp_path: Path) -> None:
    quarters = [("0-1", 16.0), ("2-3", 16.0), ("4-5", 16.0), ("6-7", 16.0)]
    root = record(tmp_path, TURIN, quarters, sockets={core: core // 4 for core in range(8)})
    sockets = layout(root, split=CpuSplit.SOCKETS).nodes
    assert [one.cores for one in sockets] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert len(layout(root).nodes) == 4
    (whole,) = layout(root, split=CpuSplit.WHOLE).nodes
    assert (whole.cores, whole.numa_domains) == (tuple(range(8)), ())
    assert "its cores lie in 4 NUMA domains" in whole.caveats[0]


def test_a_domain_without_memory_is_left_out_and_one_without_cores_is_nobodys(tmp_path: Path) -> None:
    root = record(tmp_path, TURIN, [("0-3", 16), ("4-7", 0), ("", 64)])
    found = layout(root)
    assert [node.cores for node in found.nodes] == [(0, 1, 2, 3)]
    assert [(one.device, one.because) for one in found.excluded] == [
        ("CPU cores 4-7", "NUMA domain 1 has no memory of its own")
    ]


def test_a_quota_is_divided_among_the_nodes(tmp_path: Path) -> None:
    root = record(tmp_path, TURIN, TWO_SOCKETS, groups={"cpu.max": "500000 100000"})
    assert [node.threads for node in layout(root).nodes] == [2, 2]


@pytest.mark.parametrize(
    ("cpu", "level"),
    [
        (SAPPHIRE_RAPIDS, MatrixAcceleration.TILES),
        (GRAVITON3, MatrixAcceleration.TILES),
        (TURIN, MatrixAcceleration.DOT_PRODUCTS),
        (ICE_LAKE, MatrixAcceleration.DOT_PRODUCTS),
        (BROADWELL, MatrixAcceleration.NONE),
        (CORTEX_A72, MatrixAcceleration.NONE),
    ],
)
def test_what_counts_as_acceleration(tmp_path: Path, cpu: str, level: MatrixAcceleration) -> None:
    record(tmp_path, cpu, [("0", 8)])
    assert acceleration_of(probe_cpu(tmp_path, (0,)).flags).level is level


def gpu_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Install an engine that drives GPUs, as anyone's plugin is installed."""
    info = tmp_path / "plugin" / "some_gpu_engine-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-gpu-engine\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[llmhostd.engines]\nagpu = some_gpu_engine:plugin\n")
    (info.parent / "some_gpu_engine.py").write_text("class Plugin:\n    kinds = ('gpu',)\n\nplugin = Plugin()\n")
    monkeypatch.syspath_prepend(str(info.parent))


def test_a_cpu_without_acceleration_is_left_out_where_a_gpu_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_engine(monkeypatch, tmp_path)
    found = layout(record(tmp_path / "old", BROADWELL, [("0-7", 64)]), gpus=ONE_GPU)
    (node,) = found.nodes
    assert (node.id, node.kind, node.engine, node.device) == ("gpu0", NodeKind.GPU, "agpu", "GPU-11111111-aaaa")
    assert (node.memory_bytes, node.hardware_key) == (63 * GIB, "nvidia-h100-pcie/sm9.0/80g")
    ((excluded),) = found.excluded
    assert excluded.device == "CPU cores 0-7"
    assert "neither matrix nor dot-product instructions" in excluded.because
    both = layout(record(tmp_path / "new", TURIN, [("0-7", 64)]), gpus=ONE_GPU)
    assert ([one.id for one in both.nodes], both.excluded) == (["cpu0", "gpu0"], ())
    strict = layout(tmp_path / "new", gpus=ONE_GPU, required=MatrixAcceleration.TILES)
    assert [one.id for one in strict.nodes] == ["gpu0"]
    lax = layout(tmp_path / "old", gpus=ONE_GPU, required=MatrixAcceleration.NONE)
    assert [one.id for one in lax.nodes] == ["cpu0", "gpu0"]


def test_a_broken_plugin_that_nobody_named_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_engine(monkeypatch, tmp_path)
    (tmp_path / "plugin" / "some_gpu_engine.py").write_text("import a_module_that_is_not_there\n")
    sys.modules.pop("some_gpu_engine", None)
    found = layout(record(tmp_path / "box", TURIN, [("0-7", 64)]), gpus=ONE_GPU)
    assert [one.id for one in found.nodes] == ["cpu0"]
    assert [one.because for one in found.excluded] == ["no installed engine drives GPUs"]


def test_the_only_device_serves_whatever_it_lacks_and_says_so(tmp_path: Path) -> None:
    found = layout(record(tmp_path, BROADWELL, [("0-7", 64)]), gpus=ONE_GPU)
    (node,) = found.nodes
    assert "devices.require_matrix_acceleration asks for dot-products" in node.caveats[0]
    assert [(one.device, one.because) for one in found.excluded] == [
        ("GPU 0 (NVIDIA H100 PCIe)", "no installed engine drives GPUs")
    ]


def test_cores_from_the_file_take_the_memory_near_them(tmp_path: Path) -> None:
    root = record(tmp_path, SAPPHIRE_RAPIDS, TWO_SOCKETS)
    found = layout(
        root,
        NodeSettings(id="a", cores="0-1", memory="3 GiB"),
        NodeSettings(id="b", cores="2-3"),
        NodeSettings(id="c", cores="4-5"),
    )
    a, b, c = found.nodes
    assert (a.memory_bytes, a.numa_domains, c.numa_domains) == (3 * GIB, (0,), (1,))
    assert b.memory_bytes == pytest.approx((64 * 0.9 - 3) * GIB, rel=1e-2)
    assert c.memory_bytes == pytest.approx(32 * 0.9 * GIB, rel=1e-2)
    assert [(one.device, one.because) for one in found.excluded] == [("CPU cores 6-7", "no [[nodes]] name them")]


def test_hyper_threads_of_two_nodes_on_one_core_are_said(tmp_path: Path) -> None:
    pairs = {core: f"{core % 4},{core % 4 + 4}" for core in range(8)}
    root = record(tmp_path, TURIN, [("0-7", 64)], siblings=pairs)
    a, b = layout(root, NodeSettings(id="a", cores="0-3"), NodeSettings(id="b", cores="4-7")).nodes
    assert "core 0 and another node's core 4 are hyper-threads of one physical core" in a.caveats[0]
    assert "core 4 and another node's core 0 are hyper-threads of one physical core" in b.caveats[0]


def test_numbers_shrink_together_when_the_machine_has_less_than_it_will(tmp_path: Path) -> None:
    root = record(tmp_path, TURIN, [("0-7", 64)], available_gib=10)
    wanted = [NodeSettings(id=name, cores=cores, memory="20 GiB") for name, cores in (("a", "0-3"), ("b", "4-7"))]
    a, b = layout(root, *wanted).nodes
    assert a.memory_bytes == b.memory_bytes == 9 * GIB // 2


MISTAKES = [
    ([NodeSettings(cores="4-9")], r"nodes\[0\]\.cores: is '4-9'; .* these cores only: 0-7; the nearest is `4-7`$"),
    ([NodeSettings(cores="4096")], r"nodes\[0\]\.cores: is '4096'; the daemon may use these cores only: 0-7$"),
    ([NodeSettings(cores="7-4")], r"nodes\[0\]\.cores: is '7-4'; the daemon may use"),
    ([NodeSettings(cores="a-b")], r"nodes\[0\]\.cores: is 'a-b'; expected `all` or a list"),
    ([NodeSettings(cores="0-99999999999")], r"nodes\[0\]\.cores: is '0-99999999999'; expected `all` or a list"),
    (
        [NodeSettings(cores="0-2"), NodeSettings(id="b", cores="2-4")],
        r"nodes\[1\]\.cores: core 2 belongs to cpu0 already; free: `3-7`$",
    ),
    (
        [NodeSettings(), NodeSettings(id="b")],
        r"nodes\[1\]\.cores: core 0 belongs to cpu0 already; no core is left for it$",
    ),
    ([NodeSettings(cores="0"), NodeSettings(cores="1")], r"nodes\[1\]\.id: 'cpu0' is taken .*; free: `cpu1`$"),
    ([NodeSettings(id="a b")], r"nodes\[0\]\.id: is 'a b'; expected letters"),
    ([NodeSettings(memory="lots")], r"nodes\[0\]\.memory: is 'lots'; expected `auto` or a size such as `24 GiB`"),
    (
        [NodeSettings(cores="0", memory="40 GiB"), NodeSettings(id="b", cores="1", memory="40 GiB")],
        r"nodes\[1\]\.memory: is 40\.0 GiB; this machine has 64\.0 GiB, .* leave 24\.0 GiB: that is the most",
    ),
    ([NodeSettings(engine="openvno")], r"nodes\[0\]\.engine: no engine is called 'openvno'; .* 'openvino'"),
    ([NodeSettings(profile="/x")], r"nodes\[0\]\.profile: /x cannot be read: No such file"),
    ([NodeSettings(device="0")], r"nodes\[0\]\.device: is '0'; only nodes of kind `gpu` are a device"),
    ([NodeSettings(kind=NodeKind.GPU)], r"nodes\[0\]\.device: is ''; none here"),
]


@pytest.mark.parametrize(("wanted", "complaint"), MISTAKES)
def test_impossible_node_is_named(tmp_path: Path, wanted: list[NodeSettings], complaint: str) -> None:
    with pytest.raises(OperatorError, match=complaint):
        layout(record(tmp_path, TURIN, [("0-7", 64)]), *wanted)


GPU_MISTAKES = [
    ([NodeSettings(kind=NodeKind.GPU)], r"nodes\[0\]\.kind: is gpu; engine openvino computes on CPUs only"),
    ([NodeSettings(kind=NodeKind.GPU, device="3")], r"device: is '3'; this box has `0` \(NVIDIA H100 PCIe, GPU-1111"),
    (
        [NodeSettings(kind=NodeKind.GPU, memory="99 GiB")],
        r"nodes\[0\]\.memory: is 99 GiB; NVIDIA H100 PCIe has 80\.0 GiB",
    ),
]


@pytest.mark.parametrize(("wanted", "complaint"), GPU_MISTAKES)
def test_impossible_gpu_node_is_named(tmp_path: Path, wanted: list[NodeSettings], complaint: str) -> None:
    with pytest.raises(OperatorError, match=complaint):
        layout(record(tmp_path, TURIN, [("0-7", 64)]), *wanted, gpus=ONE_GPU)


def test_this_machine_has_nodes() -> None:
    nodes = node_layout().nodes
    assert sorted(core for node in nodes for core in node.cores) == list(probe_cpu().cores)
    assert 0 <= sum(node.memory_bytes for node in nodes) <= memory_available_bytes()


@pytest.mark.parametrize(
    ("text", "expected"), [("1024", 1024), ("2 KiB", 2048), ("1.5GB", 3 * GIB // 2), (" 24 gib ", 24 * GIB)]
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_bytes(text, "x") == expected
