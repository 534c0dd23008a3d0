"""Measures one load, run and unload in a process of its own; prints bytes as JSON.

python memory_probe.py CHECKPOINT COMPUTE KV
"""

import json
import sys
from pathlib import Path

from llmhostd_openvino import open_engine

from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import HardwareKey, NodeId
from llmhostd.domain.model import ComputePrecision, KvPrecision
from llmhostd.engines.interface import LoadOptions
from llmhostd.engines.paged_contexts import PagedContexts


def private_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def main(checkpoint: str, compute: str, kv: str) -> None:
    node = NodeSpec(
        id=NodeId("cpu0"), engine="openvino", hardware_key=HardwareKey("probe"), cores=(0, 1), memory_bytes=1 << 30
    )
    engine = open_engine(node)
    options = LoadOptions(compute=ComputePrecision(compute), kv=KvPrecision(kv), threads=2)
    engine.load(Path(checkpoint), options).unload()  # what the process holds once, whatever it loads
    said = []
    seen = [private_bytes()]
    for _ in range(2):
        instance = engine.load(Path(checkpoint), options)
        said.append(instance.held_bytes())
        seen.append(private_bytes())
        PagedContexts([instance], kv_blocks=16).greedy([5] * 300, 3)
        said.append(instance.held_bytes() + 10 * instance.kv_bytes_per_block)
        seen.append(private_bytes())
        instance.unload()
        seen.append(private_bytes())
    print(json.dumps({"said": said, "seen": [one - seen[0] for one in seen[1:]]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
