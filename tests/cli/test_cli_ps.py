"""Does `ps` say where every request is, and where it is going?"""

import io

from rich.console import Console

from llmhostd.cli.ps import request_table
from llmhostd.domain.ids import InstanceId, ModelName, NodeId, RequestId
from llmhostd.domain.model import ModelState
from llmhostd.domain.request import Tier
from llmhostd.domain.snapshot import InstanceSnapshot, RequestSnapshot


def instance(node: str) -> InstanceSnapshot:
    return InstanceSnapshot(
        id=InstanceId(f"wren@{node}"), model=ModelName("wren"), node_id=NodeId(node), state=ModelState.RESIDENT,
        held_bytes=1, kv_bytes=1, kv_used_bytes=1, running=1, idle_s=0.0,
    )  # fmt: skip


def request(
    name: str, at: str | None = None, moving_to: str | None = None, follows_to: str | None = None
) -> RequestSnapshot:
    return RequestSnapshot(
        id=RequestId(name), model=ModelName("wren"), tier=Tier.LATENCY_SENSITIVE,
        instance_id=InstanceId(at) if at else None, phase="decode", prompt_tokens=9, tokens_out=1, max_tokens=9,
        age_s=1.0, headroom_s=1.0, moves=0, moving_to=InstanceId(moving_to) if moving_to else None,
        follows_to=NodeId(follows_to) if follows_to else None,
    )  # fmt: skip


def test_a_request_is_somewhere_or_on_its_way_or_nowhere_yet() -> None:
    requests = [request("r1", "wren@cpu0", "wren@cpu1"), request("r2", "wren@cpu1", follows_to="cpu0"), request("r3")]
    console = Console(file=io.StringIO(), width=160)
    console.print(request_table(requests, [instance("cpu0"), instance("cpu1")]))
    _, *rows = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [row.split("decode")[0].split() for row in rows] == [
        ["r1", "wren", "cpu0", "→", "cpu1"], ["r2", "wren", "cpu1", "→", "cpu0"], ["r3", "wren"],
    ]  # fmt: skip
