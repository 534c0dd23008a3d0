"""Does doctor say what computes here, out of which memory, and what does not?"""

import json
import subprocess
from pathlib import Path

import pytest
from daemon_process import COMMAND
from recorded_machines import BROADWELL, SAPPHIRE_RAPIDS, TURIN, record
from test_node_layout import NO_GPUS, ONE_GPU

from llmhostd.cli.checks import Finding, Mark
from llmhostd.cli.node_checks import check_nodes
from llmhostd.config import NodeSettings
from llmhostd.daemon.node_defaults import look_at
from llmhostd.daemon.nodes import node_layout
from llmhostd.devices.gpus import GpusFound
from llmhostd.domain.hardware import NodeKind


def said(root: Path, *settings: NodeSettings, gpus: GpusFound = NO_GPUS) -> list[Finding]:
    machine = look_at(root, tuple(range(8)), gpus)
    return list(check_nodes(node_layout(settings, machine=machine), machine.acceleration))


def test_every_node_its_memory_and_its_instructions_are_told(tmp_path: Path) -> None:
    found = said(record(tmp_path, SAPPHIRE_RAPIDS, [("0-3", 64), ("4-7", 32)]))
    sentences = {(one.subject, one.sentence.split(":")[0]): one.sentence for one in found}
    assert "cores 4-7, 4 thread(s), NUMA domain 1; matrix acceleration: AMX (bf16)" in sentences["node", "cpu1"]
    assert (
        "28.8 GiB: this machine leaves 96.0 GiB; 86.4 GiB of it are shared with 1 other node"
        in sentences["node memory", "cpu1"]
    )
    assert {one.mark for one in found} == {Mark.GOOD}


def test_what_is_slow_and_what_is_left_out_stand_out(tmp_path: Path) -> None:
    found = said(record(tmp_path, BROADWELL, [("0-7", 64)]), NodeSettings(cores="0-5"), gpus=ONE_GPU)
    slow = [(one.subject, one.sentence) for one in found if one.mark is Mark.SLOW]
    assert [subject for subject, _ in slow] == ["node", "left out", "left out"]
    assert "cpu0: its CPU has neither matrix nor dot-product instructions" in slow[0][1]
    assert slow[1][1] == "GPU 0 (NVIDIA H100 PCIe): no [[nodes]] name it."
    assert slow[2][1] == "CPU cores 6-7: no [[nodes]] name them."
    assert ("gpus", "driver 1 knows 1 GPU(s).") in [(one.subject, one.sentence) for one in found]


@pytest.mark.parametrize(("more", "status", "nodes"), [("", 0, ["a"]), ('cores = "4095"\n', 1, None)])
def test_doctor_resolves_the_settings_on_this_machine(
    tmp_path: Path, more: str, status: int, nodes: list[str] | None
) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(f'[http]\nport = 0\n[[nodes]]\nid = "a"\n{more}')
    command = [*COMMAND, "--config", str(settings), "--state-dir", str(tmp_path / "state"), "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    diagnosis = json.loads(done.stdout)
    wrong = [one["sentence"] for one in diagnosis["findings"] if one["mark"] == "broken"]
    assert (done.returncode, bool(wrong)) == (status, bool(status))
    if nodes is None:
        assert diagnosis["layout"] is None
        assert "nodes[0].cores: is '4095'; the daemon may use these cores only" in wrong[0]
    else:
        assert [one["id"] for one in diagnosis["layout"]["nodes"]] == nodes
        assert diagnosis["layout"]["budgets"][0]["because"]
        assert diagnosis["acceleration"]["level"] in ("tiles", "dot-products", "none")


def test_a_node_that_stands_in_says_so(tmp_path: Path, stand_in) -> None:
    profile = stand_in().profile
    node = NodeSettings(id="gpu0", kind=NodeKind.GPU, engine="profiled", memory="24 GiB", profile=profile)
    found = said(record(tmp_path, TURIN, [("0-7", 64)]), NodeSettings(cores="0-3"), node)
    sentences = [one.sentence for one in found]
    assert (
        f"gpu0: gpu, profiled, no device: times come from {profile}; driven from cores 4-7, 1 thread(s)." in sentences
    )
    assert "gpu0: 24.0 GiB: given by number." in sentences
