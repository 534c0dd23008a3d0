"""Which nodes does an experiment have?"""

import pytest

from llmhostd.domain.errors import OperatorError
from llmhostd.domain.hardware import NodeKind
from llmhostd.simulator.assumptions import GIB, Assumptions
from llmhostd.simulator.cluster import read_cluster

USUAL = Assumptions()


def test_the_shorthand_is_the_papers_machines():
    nodes = read_cluster("2cpu+1gpu", USUAL)
    assert [node.id for node in nodes] == ["cpu0", "cpu1", "gpu0"]
    assert [node.hardware_key for node in nodes] == ["xeon-6462c-32c", "xeon-6462c-32c", "a100-80g"]
    assert [node.memory_bytes // GIB for node in nodes] == [256, 256, 78]
    assert [node.block_tokens for node in nodes] == [32, 32, 16]
    assert [node.kind for node in nodes] == [NodeKind.CPU, NodeKind.CPU, NodeKind.GPU]


def test_a_file_may_name_other_machines(tmp_path):
    path = tmp_path / "cluster.json"
    path.write_text('{"nodes": [{"kind": "cpu", "count": 1, "node": "aliyun-8c", "memory_gib": 64},'
                    ' {"kind": "cpu", "count": 2}]}')  # fmt: skip
    nodes = read_cluster(str(path), USUAL)
    assert [(node.id, node.hardware_key, node.memory_bytes // GIB) for node in nodes] == [
        ("cpu0", "aliyun-8c", 64),
        ("cpu1", "xeon-6462c-32c", 256),
        ("cpu2", "xeon-6462c-32c", 256),
    ]


@pytest.mark.parametrize(("text", "why"), [("4cpu+4tpu", "'4tpu' is neither a file nor like"), ("0cpu", "has no node")])
def test_words_that_mean_nothing_are_named(text, why):
    with pytest.raises(OperatorError, match=why):
        read_cluster(text, USUAL)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"nodes": [{"kind": "tpu", "count": 1}]}', r"Invalid enum value 'tpu' - at `\$.nodes\[0\].kind`"),
        ('{"nodes": [{"kind": "cpu"}]}', "missing required field `count`"),
        ('{"nodes": [{"kind": "cpu", "count": 1, "cores": 4}]}', "unknown field `cores`"),
    ],
)
def test_a_file_that_is_none_names_the_field(tmp_path, text, why):
    path = tmp_path / "cluster.json"
    path.write_text(text)
    with pytest.raises(OperatorError, match=f"cluster file .* cannot be used: .*{why}"):
        read_cluster(str(path), USUAL)
