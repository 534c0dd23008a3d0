"""A worker died because a page of a mapped file was gone: which file was it, and whose?

Weights are used where they lie. Whoever cuts short a file that could not be leased (`loader.lease`) takes pages away
from under a running instance, which no process survives (SIGBUS). Loading it again would not mend that: its model is
named, with its file, so that the mind can set it aside at once.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from llmhostd.domain.errors import CheckpointError
from llmhostd.domain.ids import InstanceId, ModelName
from llmhostd.domain.reports import NodeDown
from llmhostd.domain.snapshot import InstanceSnapshot
from llmhostd.loader.page_cache import weight_files
from llmhostd.loader.store_index import DATA_FILE, INDEX_FILE, data_bytes_of

CheckpointOf = Callable[[ModelName], Path]
State = tuple[int, int]
"""Bytes, and when it was written last (ns)."""


class Inquest:
    """Knows how the files of loaded instances looked when they were loaded."""

    def __init__(self, checkpoint_of: CheckpointOf) -> None:
        self._checkpoint_of = checkpoint_of
        self._loaded: dict[InstanceId, dict[Path, State]] = {}

    def loaded(self, instance: InstanceSnapshot) -> None:
        """Note how an instance's files look now that it is loaded."""
        files = weight_files(self._checkpoint_of(instance.model))
        self._loaded[instance.id] = {file: state for file in files if (state := _state(file)) is not None}

    def gone(self, instance_id: InstanceId) -> None:
        """Forget an instance."""
        self._loaded.pop(instance_id, None)

    def cause(self, report: NodeDown, there: Sequence[InstanceSnapshot]) -> NodeDown:
        """Say whose file was changed, if one of those was that were on the node; else the report as it is."""
        mine = [one for one in there if one.node_id == report.node_id]
        found = [(one, why) for one in mine if report.bus_error and (why := self._changed(one))]
        for one in mine:
            self.gone(one.id)
        if not found:
            return report
        suspected = [pair for pair in found if pair[0].id == report.suspect]
        instance, why = (suspected or found)[0]
        because = f"{why} while {instance.id} used it where it lies, and took its worker down (SIGBUS)"
        return msgspec.structs.replace(report, suspect=instance.id, because=because, file_changed=True)

    def _changed(self, instance: InstanceSnapshot) -> str:
        """What was done to an instance's files since it was loaded; empty: nothing that shows."""
        before = self._loaded.get(instance.id) or _expected(self._checkpoint_of(instance.model))
        for file, (size, written_ns) in before.items():
            now = _state(file)
            if now is None:
                continue  # whoever has it open keeps it
            if now[0] < size:
                return f"{file} was cut short ({now[0]:,} of {size:,} bytes are left)"
            if written_ns and now[1] != written_ns:
                return f"{file} was written to"
        return ""


def _expected(checkpoint: Path) -> dict[Path, State]:
    """How large a store's data file must be, of which nobody noted how it looked."""
    try:
        return {checkpoint / DATA_FILE: (data_bytes_of(checkpoint / INDEX_FILE), 0)}
    except CheckpointError:
        return {}


def _state(file: Path) -> State | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
