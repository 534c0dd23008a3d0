"""How does a loaded model run an iteration, and become faster while it does?

A chain of parts: hidden states go from one to the next. If the weights are used where they lie at first, they are
packed part by part, one per iteration, so that no token waits for more than one.
"""

import ctypes
from collections.abc import Callable, Sequence

import openvino as ov

from llmhostd.domain.errors import EngineError
from llmhostd.domain.model import AdapterSlots, ModelShape
from llmhostd.domain.reports import LoadStages
from llmhostd.engines.interface import Floats, Iteration
from llmhostd.loader.adapter import AdapterWeights
from llmhostd.loader.safetensors import Checkpoint
from llmhostd_openvino.begun import Begun
from llmhostd_openvino.compiler import Spent
from llmhostd_openvino.footprint import Footprint
from llmhostd_openvino.instance_slots import InstanceSlots
from llmhostd_openvino.packer import Packer
from llmhostd_openvino.padding import SMALL_COUNTS, TOKEN_STEP
from llmhostd_openvino.paged_attention import BLOCK_TOKENS
from llmhostd_openvino.part import Part, first_line

_libc = ctypes.CDLL(None)


class OpenVinoInstance:
    """An `engines.interface.EngineInstance`, and a `FillingInstance`, and an `InterruptibleInstance`."""

    block_tokens = BLOCK_TOKENS
    token_step = TOKEN_STEP
    token_counts: tuple[int, ...] = SMALL_COUNTS

    def __init__(
        self,
        parts: Sequence[Part],
        checkpoint: Checkpoint,
        shape: ModelShape,
        footprint: Footprint,
        spent: Spent,
        packer: Packer,
        kv_limit: int,
    ) -> None:
        """Take compiled parts, which follow on each other. `kv_limit`: bytes of KV that the node could hold at most."""
        self.shape = shape
        self.filling = any(not part.there for part in parts)
        self.stages = _stages(checkpoint, spent)
        self.settled = False
        factors = [part.factors for part in parts if part.factors is not None]
        self._adapters = InstanceSlots(factors) if factors else None
        self.adapter_slots: AdapterSlots | None = self._adapters.slots if self._adapters else None
        self.kv_bytes_per_block = sum(part.kv_bytes_per_block for part in parts)
        self.kv_blocks = 0
        self._parts = tuple(parts)
        self._checkpoint: Checkpoint | None = checkpoint
        self._footprint = footprint
        self._packer = packer
        self._spent = spent
        self._begun: Begun | None = None
        self._asked_to_pack = False
        self._slots = 0
        """How many slots the last iteration looked at."""
        for part in parts:
            part.reserve(kv_limit // max(self.kv_bytes_per_block, 1))

    def run(self, iteration: Iteration) -> Floats:
        """See `EngineInstance.run`. Raises InstanceLostError or ProcessLostError as a part does."""
        begun, self._begun = self._begun_with(iteration), None
        return self._computed(iteration, begun.through(self._parts), begun.slots)

    def run_unless(self, iteration: Iteration, waits: Callable[[], bool]) -> Floats | None:
        """See `InterruptibleInstance.run_unless`: between two parts. Raises as `run`."""
        self._begun = None
        begun = self._begun_with(iteration)
        output = begun.through_unless(self._parts, waits)
        return None if output is None else self._computed(iteration, output, begun.slots)

    def _computed(self, iteration: Iteration, output: ov.Tensor, slots: int) -> Floats:
        if slots > self._slots:
            # The engine makes room for larger inputs and drops it when it looks at ours.
            _libc.malloc_trim(0)
        self._slots = slots
        # Leave out what padding added.
        tokens = len(iteration.positions)
        rows = len(iteration.sampled_indices) if self._parts[-1].modules.head else tokens
        self._footprint.ran(tokens, rows)
        if not self.settled:
            self._settle()
        computed: Floats = output.data
        return computed[:rows]

    def begin(self, iteration: Iteration) -> None:
        """See `FillingInstance.begin`."""
        self._begun = self._begun_with(iteration)
        self._begun.as_far_as_there(self._parts[:-1])
        self._footprint.ran(len(iteration.positions), 0)

    def fill(self, more: Callable[[], None]) -> None:
        """See `FillingInstance.fill`. Nothing is computed of the last part before."""
        *others, last = self._parts
        for part in others:
            part.wait()
            more()
        last.wait()
        if self._checkpoint is not None:
            self.stages = _stages(self._checkpoint, self._spent)
        self.filling = False

    def pack(self) -> None:
        """See `EngineInstance.pack`."""
        self._asked_to_pack = True
        self._packer.pack(self._parts)

    def _begun_with(self, iteration: Iteration) -> Begun:
        """What was computed of the very same iteration, or else a beginning."""
        if self._begun is not None and self._begun.is_of(iteration):
            return self._begun
        return Begun(iteration, self._parts, self._adapters)

    def _settle(self) -> None:
        """Let the next iteration pack one more part; once the last has run packed, the file's pages may go."""
        if not self._asked_to_pack:
            self._asked_to_pack = True
            self._packer.pack_soon(self._parts)
        waiting = [part for part in self._parts if part.packs_later]
        if not waiting:
            self.settled = True
            if self._checkpoint is not None:
                # The mapping stays, for whatever the engine still reads.
                self._checkpoint.drop_pages()
        # Not the last of them before the one before it ran: every part has run once when nobody waits.
        next((part for part in waiting if part.take_packed()), None)

    def set_adapter(self, slot: int, weights: AdapterWeights | None) -> None:
        """See `AdaptableInstance.set_adapter`."""
        if self._adapters is None:
            raise EngineError("this instance was loaded without room for adapters")
        self._begun = None
        self._adapters.put(slot, weights)

    def resize_kv(self, kv_blocks: int, moves: Sequence[tuple[int, int]] = ()) -> None:
        """See `EngineInstance.resize_kv`. All sources of `moves` are read before any target is written."""
        before, self._begun = self.kv_blocks, None
        for part in self._parts:
            part.arena.move(moves, kv_blocks)
        self.kv_blocks = kv_blocks
        try:
            self._look_at_blocks()
        except (RuntimeError, MemoryError) as error:
            if kv_blocks > before:  # shorter views than there are blocks would be read beyond; longer ones are harmless
                self.kv_blocks = before
                for part in self._parts:
                    part.arena.resize(before)
            raise EngineError(f"the engine does not take KV of {kv_blocks} blocks: {first_line(error)}") from error

    def _look_at_blocks(self) -> None:
        for part in self._parts:
            part.arena.resize(self.kv_blocks)
        for part in self._parts:
            part.look_at_caches()

    def held_bytes(self) -> int:
        """See `EngineInstance.held_bytes`; nothing once it is unloaded."""
        if self._checkpoint is None:
            return 0
        copied_bytes = self._checkpoint.copied_bytes
        return copied_bytes + self._footprint.held_bytes() + (self._adapters.held_bytes if self._adapters else 0)

    def unload(self) -> None:
        """See `EngineInstance.unload`."""
        for part in self._parts:
            part.stay_unpacked()
        for part in self._parts:
            part.release()
        self.kv_blocks = 0
        self._parts, self._begun, self._adapters = (), None, None
        self._checkpoint = None
        _libc.malloc_trim(0)


def _stages(checkpoint: Checkpoint, spent: Spent) -> LoadStages:
    reader = checkpoint.reader
    if reader is None:
        return LoadStages(build_s=spent.build_s, compile_s=spent.compile_s)
    return LoadStages(
        read_s=reader.read_s,
        build_s=spent.build_s,
        compile_s=spent.compile_s,
        read_bytes=reader.read_bytes,
        disk_bytes=reader.disk_bytes,
    )
