"""Do weights that are to be kept get into memory, stay there, and leave when they are told to?"""

import asyncio
import os
from pathlib import Path

from box import NODE, load_frame, running_box
from reference_engine import write_checkpoint

from llmhostd.domain.commands import KeepWeights, ReleaseWeights
from llmhostd.domain.ids import ModelName
from llmhostd.domain.model import ModelState
from llmhostd.domain.reports import WeightsKept
from llmhostd.engines.frames import KeepFrame
from llmhostd.loader.page_cache import drop, where_weights_lie

SIZE = 40 << 20


def weights(directory: Path) -> Path:
    """A checkpoint's folder of so many bytes, on the disk and nowhere else."""
    directory.mkdir()
    file = directory / "model.safetensors"
    file.write_bytes(bytes(range(256)) * (SIZE // 256))
    with file.open("rb+") as written:
        written.flush()
        os.fsync(written.fileno())
    drop(directory)
    return directory


def keep(name: str, checkpoint: Path) -> KeepFrame:
    command = KeepWeights(node_id=NODE, model=ModelName(name), because="a test wants it")
    return KeepFrame(command=command, checkpoint=str(checkpoint))


def locked_bytes(pid: int) -> int:
    rows = dict(line.partition(":")[::2] for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(rows["VmLck"].split()[0]) * 1024


def worker_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return next(int(each) for each in children if b"llmhostd.worker" in Path(f"/proc/{each}/cmdline").read_bytes())


def test_weights_are_brought_in_held_and_let_go(tmp_path: Path) -> None:
    checkpoint = weights(tmp_path / "m")
    assert where_weights_lie(checkpoint).disk_bytes == SIZE  # type: ignore[union-attr]

    async def scenario() -> None:
        async with running_box() as box:
            worker = worker_of(os.getpid())
            box.supervisor.send(keep("m", checkpoint))
            told = await box.next(WeightsKept)
            assert (told.model, told.kept_bytes) == ("m", SIZE)
            assert where_weights_lie(checkpoint).memory_bytes == SIZE  # type: ignore[union-attr]
            if not told.because:
                assert locked_bytes(worker) >= SIZE
                drop(checkpoint)
                assert where_weights_lie(checkpoint).memory_bytes == SIZE, "locked"  # type: ignore[union-attr]
            box.supervisor.send(ReleaseWeights(node_id=NODE, model=ModelName("m"), because="a test wants it"))
            # What follows is heard after it.
            box.supervisor.send(load_frame("a", write_checkpoint(tmp_path / "a", seed=1)))
            await box.reached("a", ModelState.WARM)
            assert locked_bytes(worker) == 0
            drop(checkpoint)
            assert where_weights_lie(checkpoint).disk_bytes == SIZE  # type: ignore[union-attr]

    asyncio.run(scenario())


def test_what_cannot_be_read_is_told_and_the_worker_goes_on(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.safetensors").symlink_to(tmp_path / "nowhere")

    async def scenario() -> None:
        async with running_box() as box:
            box.supervisor.send(keep("m", tmp_path / "m"))
            told = await box.next(WeightsKept)
            assert told.kept_bytes == 0
            assert "model.safetensors" in told.because
            box.supervisor.send(load_frame("a", write_checkpoint(tmp_path / "a", seed=1)))
            await box.reached("a", ModelState.WARM)

    asyncio.run(scenario())


def test_one_that_is_called_off_on_its_way_is_not_kept(tmp_path: Path) -> None:
    first, second = weights(tmp_path / "m"), weights(tmp_path / "n")

    async def scenario() -> None:
        async with running_box() as box:
            box.supervisor.send(keep("m", first))
            box.supervisor.send(ReleaseWeights(node_id=NODE, model=ModelName("m"), because="a test wants it"))
            box.supervisor.send(keep("n", second))
            await box.until(lambda: any(one.model == "n" for one in box.all(WeightsKept)))
            told = box.all(WeightsKept)
            assert [one.model for one in told] in (["n"], ["m", "n"]), "m may have been there before it was called off"
            if not told[-1].because:
                assert locked_bytes(worker_of(os.getpid())) == SIZE

    asyncio.run(scenario())
