"""How does one loaded range of modules run an iteration?

`run` is the hot path: it hands numpy buffers to the engine by port number and returns a view of the engine's output.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from llmhostd.domain.errors import EngineError, InstanceLostError, ProcessLostError
from llmhostd.domain.model import ModelShape
from llmhostd.domain.reports import LoadStages
from llmhostd.engines.interface import Floats, Iteration, ModuleRange
from llmhostd.loader.adapter import AdapterWeights
from llmhostd.loader.safetensors import Checkpoint
from llmhostd_openvino.footprint import Footprint
from llmhostd_openvino.graph import HIDDEN, POSITIONS, SAMPLED, TOKEN_IDS
from llmhostd_openvino.kv_arena import CachePort, KvArena
from llmhostd_openvino.low_rank import ROW_SLOTS
from llmhostd_openvino.padding import TOKEN_STEP, pad
from llmhostd_openvino.paged_attention import BLOCK_TOKENS
from llmhostd_openvino.slot_factors import SlotFactors

_libc = ctypes.CDLL(None)

_NOTHING_COMPUTED = np.float32(-1.7e38)
"""No logit and no hidden state is this."""


class OpenVinoInstance:
    """An `engines.interface.EngineInstance`."""

    block_tokens = BLOCK_TOKENS
    token_step = TOKEN_STEP

    def __init__(
        self,
        compiled: ov.CompiledModel,
        checkpoint: Checkpoint,
        shape: ModelShape,
        modules: ModuleRange,
        kv_limit: int,
        stages: LoadStages,
        factors: SlotFactors | None = None,
    ) -> None:
        """Take a compiled graph of `modules`, which reads `factors` if it has room for adapters.

        `kv_limit`: bytes of KV that the node could hold at most.
        """
        self.shape = shape
        self.stages = stages
        self._modules = modules
        self._checkpoint: Checkpoint | None = checkpoint
        self._request = compiled.create_infer_request()
        self._compiled = compiled
        self._ports = {port.get_any_name(): place for place, port in enumerate(compiled.inputs)}
        caches = _cache_ports(compiled)
        self.kv_bytes_per_block = sum(port.block_bytes for port in caches)
        self._arena = KvArena(caches, kv_limit // max(self.kv_bytes_per_block, 1))
        self._caches: list[tuple[int, ov.Tensor]] = []
        self._width = shape.architecture.vocab if modules.head else shape.architecture.hidden
        self._footprint = Footprint(shape, modules)
        self._factors = factors
        self.adapter_slots = factors.slots if factors else None
        for name, tensor in (factors.tensors() if factors else {}).items():
            self._request.set_input_tensor(self._ports[name], tensor)
        self.kv_blocks = 0
        self.resize_kv(0)

    def run(self, iteration: Iteration) -> Floats:
        """See `EngineInstance.run`. Raises InstanceLostError when the engine fails.

        Where memory is refused to it (`ulimit -v`, `vm.overcommit_memory = 2`), what it computes afterwards is wrong.
        On one thread it does not even report the error, and other instances crash later: so the output is marked
        before and looked at afterwards, and ProcessLostError raised.
        """
        padded = pad(iteration, self._arena.scratch_block)
        inputs = self._inputs(padded)
        marked: Floats = self._request.get_output_tensor(0).data
        marked.reshape(-1)[:1] = _NOTHING_COMPUTED
        try:
            for name, values in inputs:
                self._request.set_input_tensor(self._ports[name], ov.Tensor(values))
            self._request.infer(share_outputs=True)
        except RuntimeError as error:
            raise InstanceLostError(f"the engine failed an iteration: {first_line(error)}") from error
        output: Floats = self._request.get_output_tensor(0).data
        rows = len(padded.sampled_indices) if self._modules.head else len(padded.positions)
        if output.size != rows * self._width or output.reshape(-1)[0] == _NOTHING_COMPUTED:
            raise ProcessLostError("the engine computed nothing and gave no reason; memory was probably refused to it")
        return self._ran(iteration, output)

    def _ran(self, iteration: Iteration, output: Floats) -> Floats:
        """Leave out what padding added."""
        tokens = len(iteration.positions)
        rows = len(iteration.sampled_indices) if self._modules.head else tokens
        if self._footprint.ran(tokens, rows) and self._checkpoint is not None:
            # The weights are packed: their file pages may go. The mapping stays, for whatever the engine still reads.
            self._checkpoint.drop_pages()
        return output.reshape(-1, self._width)[:rows]

    def _inputs(self, it: Iteration) -> list[tuple[str, npt.NDArray[Any]]]:
        longest = (it.past_lens + np.diff(it.subsequence_begins)).max()
        inputs: list[tuple[str, npt.NDArray[Any]]] = [
            (POSITIONS, it.positions),
            ("past_lens", it.past_lens),
            ("subsequence_begins", it.subsequence_begins),
            ("block_indices", it.block_indices),
            ("block_indices_begins", it.block_indices_begins),
            ("max_context_len", np.array(longest, np.int32)),
        ]
        if self._modules.embedding:
            inputs.append((TOKEN_IDS, it.token_ids))
        elif it.hidden is not None:
            inputs.append((HIDDEN, it.hidden.reshape(len(it.positions), 1, -1)))
        else:
            raise EngineError("this range has no embedding: the iteration must carry hidden states")
        if self._modules.head:
            inputs.append((SAMPLED, it.sampled_indices))
        if self._factors is not None:
            inputs.append((ROW_SLOTS, self._factors.row_slots(it)))
        elif it.adapters is not None and (it.adapters != -1).any():
            raise EngineError("this instance was loaded without room for adapters")
        return inputs

    def set_adapter(self, slot: int, weights: AdapterWeights | None) -> None:
        """See `AdaptableInstance.set_adapter`."""
        if self._factors is None:
            raise EngineError("this instance was loaded without room for adapters")
        self._factors.put(slot, weights)

    def resize_kv(self, kv_blocks: int, moves: Sequence[tuple[int, int]] = ()) -> None:
        """See `EngineInstance.resize_kv`. All sources of `moves` are read before any target is written."""
        before = self.kv_blocks
        try:
            self._arena.resize(kv_blocks, moves)
        finally:
            self.kv_blocks = self._arena.blocks
        try:
            self._look_at_caches()
        except (RuntimeError, MemoryError) as error:
            if kv_blocks > before:  # shorter views than there are blocks would be read beyond; longer ones are harmless
                self._arena.resize(before, ())
                self.kv_blocks = before
            raise EngineError(f"the engine does not take KV of {kv_blocks} blocks: {first_line(error)}") from error

    def _look_at_caches(self) -> None:
        """Hand the engine the blocks that there are now."""
        caches = self._arena.tensors()
        for place, tensor in caches:
            self._request.set_input_tensor(place, tensor)
        # Kept: the engine does not own the memory behind these tensors.
        self._caches = caches

    def held_bytes(self) -> int:
        """See `EngineInstance.held_bytes`; nothing once it is unloaded."""
        if self._checkpoint is None:
            return 0
        return self._footprint.held_bytes() + (self._factors.held_bytes if self._factors else 0)

    def unload(self) -> None:
        """See `EngineInstance.unload`."""
        self._arena.release()
        self.kv_blocks = 0
        # In this order: the request reads the compiled model, which may read the mapping.
        del self._request, self._compiled
        self._caches = []
        self._checkpoint = self._factors = None
        _libc.malloc_trim(0)


def _cache_ports(compiled: ov.CompiledModel) -> list[CachePort]:
    """Find the cache inputs, to which the plugin has given type and shape."""
    ports = []
    for place, port in enumerate(compiled.inputs):
        if "_cache." in port.get_any_name():
            heads, tokens, width = (port.partial_shape[axis].get_length() for axis in (1, 2, 3))
            # By name: the type object of a port would keep the whole compiled model alive.
            ports.append(CachePort(place, port.element_type.get_type_name(), (heads, tokens, width)))
    return ports


def first_line(error: Exception) -> str:
    """Keep the sentence of an engine's error that says what is wrong, not where in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith("Exception from")]
    return (said or lines or [type(error).__name__])[-1]
