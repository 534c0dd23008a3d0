"""Are starts given back, the oldest first, and no more of them than are needed?"""

from pathlib import Path

from llmhostd.domain.ids import HardwareKey, ModelName, NodeId, ShapeKey
from llmhostd.domain.model import WeightFormat
from llmhostd.domain.start import StartSeen, TierBytes
from llmhostd.state.database import open_database
from llmhostd.state.starts import KEPT, StartTable


def seen(number: int, hardware: str = "here") -> StartSeen:
    return StartSeen(
        model=ModelName(f"m{number}"), node_id=NodeId("cpu0"), hardware_key=HardwareKey(hardware),
        shape_key=ShapeKey("small"), weights=WeightFormat.BF16, layers=12, weight_bytes=300,
        came_from=TierBytes(memory_bytes=100, disk_bytes=200), queue_s=0.5, read_s=0.25, load_s=1.0, beside=True,
        pack_s=None if number % 2 else 0.125, packed_beside=False, estimated_s=1.5,
    )  # fmt: skip


def test_starts_survive_a_restart_and_come_oldest_first(tmp_path: Path) -> None:
    with open_database(tmp_path) as db:
        for number in (3, 1, 2):
            StartTable(db).put(seen(number))
        StartTable(db).put(seen(4, "elsewhere"))
    with open_database(tmp_path) as db:
        assert StartTable(db).latest({HardwareKey("here")}) == [seen(3), seen(1), seen(2)]
        assert len(StartTable(db).latest({HardwareKey("here"), HardwareKey("elsewhere")})) == 4


def test_the_oldest_are_forgotten(tmp_path: Path) -> None:
    with open_database(tmp_path) as db:
        table = StartTable(db)
        with db.atomic():
            for number in range(KEPT + 20):
                table.put(seen(number))
        kept = table.latest({HardwareKey("here")})
        assert len(kept) == KEPT
        assert (kept[0].model, kept[-1].model) == ("m20", f"m{KEPT + 19}")
