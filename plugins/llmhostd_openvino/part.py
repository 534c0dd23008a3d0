"""How does one range of modules within an instance compute, on whatever graph it has now?

At first a part may read its weights where they lie (`weight_inputs`); later it is given a graph that packs them. Its
caches and adapters stay where they are.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from llmhostd.domain.errors import EngineError, InstanceLostError, ProcessLostError
from llmhostd.engines.interface import Iteration, ModuleRange
from llmhostd_openvino.graph import HIDDEN, POSITIONS, SAMPLED, TOKEN_IDS
from llmhostd_openvino.held_inputs import HeldInputs
from llmhostd_openvino.kv_arena import CachePort, KvArena
from llmhostd_openvino.low_rank import ROW_SLOTS
from llmhostd_openvino.slot_factors import SlotFactors
from llmhostd_openvino.slot_rows import SlotRows, SlotView
from llmhostd_openvino.weight_inputs import StoredInputs

_NOTHING_COMPUTED = np.float32(-1.7e38)
"""No logit and no hidden state is this."""

Compile = Callable[[], ov.CompiledModel]


class Part:
    """Modules that compute as one. `run` and `take_packed` are for one thread at a time, `make_packed` for another."""

    def __init__(
        self,
        modules: ModuleRange,
        compiled: ov.CompiledModel,
        stored: StoredInputs | None = None,
        pack: Compile | None = None,
        factors: SlotFactors | None = None,
    ) -> None:
        """`stored`: what its weights are when they are inputs; `pack` then compiles a graph that packs them."""
        self.modules = modules
        self.factors = factors
        self._cache_ports = _cache_ports(compiled)
        self.kv_bytes_per_block = sum(port.block_bytes for port in self._cache_ports)
        self._arena: KvArena | None = None
        self.caches: tuple[ov.Tensor, ...] = ()
        """Keys and values of its layers, as the engine sees them."""
        self._pack = pack
        self._packing = Lock()
        self._packed: ov.CompiledModel | None = None
        self._views: Mapping[str, ov.Tensor] = {}
        self._stored = stored
        """Weights that the engine was not pointed at yet."""
        self._compute_on(compiled)

    @property
    def there(self) -> bool:
        """Whether its weights are in memory and checked."""
        return self._stored is None or self._stored.there

    def wait(self) -> None:
        """Wait until they are; from any thread. Raises CheckpointError when what was read is damaged."""
        stored = self._stored
        if stored is not None:
            stored.wait()

    def point(self) -> None:
        """Point the engine at its weights, if it was not yet; waits for them. Raises as `wait`."""
        if self._stored is not None:
            self._views = self._stored.views()
            self._set(self._views)
            self._stored = None

    @property
    def packs_later(self) -> bool:
        """Whether its weights are still to be packed."""
        return self._pack is not None

    def make_packed(self) -> None:
        """Compile the graph that packs the weights, unless it is there. Raises RuntimeError as the engine does."""
        with self._packing:
            if self._packed is None:
                pack = self._pack  # asked for second: `take_packed` lets go of it first
                self._packed = None if pack is None else pack()

    def take_packed(self) -> bool:
        """Compute on the graph that packs the weights from now on, if it is there; its first run does it."""
        if self._packed is None:
            return False
        self._pack = None  # first, or `make_packed` might compile it once more
        packed, self._packed = self._packed, None
        self._stored = None
        self._compute_on(packed)
        self.look_at_caches()
        return True

    def stay_unpacked(self) -> None:
        """Go on as it is: its weights cannot be packed, or the instance goes."""
        self._pack = None

    def reserve(self, most_blocks: int) -> None:
        """Reserve addresses for its caches, with no block yet. Raises EngineError."""
        self._arena = KvArena(self._cache_ports, most_blocks)
        self.look_at_caches()

    @property
    def arena(self) -> KvArena:
        """Its caches."""
        if self._arena is None:
            raise AssertionError("a part computes once its caches are reserved")
        return self._arena

    def look_at_caches(self) -> None:
        """Hand the engine the blocks that there are now."""
        tensors = self.arena.tensors()
        for port, tensor in zip(self._cache_ports, tensors, strict=True):
            self._request.set_input_tensor(self._ports[port.name], tensor)
        # Kept: the engine does not own the memory behind these tensors.
        self.caches = tuple(tensors)

    def run(self, it: Iteration, hidden: ov.Tensor | None, slot_rows: SlotRows | None) -> ov.Tensor:
        """Compute; `hidden`: what the part before this one returned. The result is a view that the next run overwrites.

        `slot_rows`: which rows use which adapters, if there is room for them.

        Raises InstanceLostError when the engine fails. Where memory is refused to it (`ulimit -v`,
        `vm.overcommit_memory = 2`), what it computes afterwards is wrong. On one thread it does not even report the
        error, and other instances crash later: so the output is marked before and looked at afterwards, and
        ProcessLostError raised. It waits for weights that are still being read: CheckpointError if they are damaged.
        """
        self.point()
        inputs = self._inputs(it)
        if slot_rows is not None:
            self._look_at_slots(slot_rows.view)
            inputs.append((ROW_SLOTS, slot_rows.row_slots))
        marked: npt.NDArray[Any] = self._request.get_output_tensor(0).data
        if marked.size:
            marked[0, 0] = _NOTHING_COMPUTED
        try:
            for name, values in inputs:
                self._held.put(name, values)
            if not self.modules.embedding:
                self._request.set_input_tensor(self._ports[HIDDEN], _hidden(it, hidden))
            self._request.infer(share_outputs=True)
        except RuntimeError as error:
            raise InstanceLostError(f"the engine failed an iteration: {first_line(error)}") from error
        output = self._request.get_output_tensor(0)
        rows = len(it.sampled_indices) if self.modules.head else len(it.positions)
        computed = output.data
        if not computed.size or len(computed) != rows or computed[0, 0] == _NOTHING_COMPUTED:
            raise ProcessLostError("the engine computed nothing and gave no reason; memory was probably refused to it")
        return output

    def release(self) -> None:
        """Give everything back."""
        self.stay_unpacked()
        with self._packing:
            self._packed = None
        self.arena.release()
        # In this order: the request reads the compiled model, which may read the mapping.
        del self._held, self._request, self._compiled
        self._views, self._stored = {}, None
        self.caches = ()
        self.factors = None

    def _compute_on(self, compiled: ov.CompiledModel) -> None:
        self._request = compiled.create_infer_request()
        self._compiled = compiled
        self._views = {}
        self._ports = {port.get_any_name(): place for place, port in enumerate(compiled.inputs)}
        self._held = HeldInputs(self._request, self._ports)
        self._slots: SlotView | None = None
        """What it was pointed at of its adapters."""

    def _look_at_slots(self, view: SlotView) -> None:
        if self.factors is not None and view != self._slots:
            self._set(self.factors.tensors(view))
            self._slots = view

    def _set(self, tensors: Mapping[str, ov.Tensor]) -> None:
        for name, tensor in tensors.items():
            self._request.set_input_tensor(self._ports[name], tensor)

    def _inputs(self, it: Iteration) -> list[tuple[str, npt.NDArray[Any]]]:
        # As Python's own numbers: numpy's functions have left the caches while the engine computed.
        begins = it.subsequence_begins.tolist()
        longest = max(
            past + end - begin for past, (begin, end) in zip(it.past_lens.tolist(), pairwise(begins), strict=True)
        )
        inputs: list[tuple[str, npt.NDArray[Any]]] = [
            (POSITIONS, it.positions),
            ("past_lens", it.past_lens),
            ("subsequence_begins", it.subsequence_begins),
            ("block_indices", it.block_indices),
            ("block_indices_begins", it.block_indices_begins),
            ("max_context_len", np.array(longest, np.int32)),
        ]
        if self.modules.embedding:
            inputs.append((TOKEN_IDS, it.token_ids))
        if self.modules.head:
            inputs.append((SAMPLED, it.sampled_indices))
        if self.factors is None and it.adapters is not None and (it.adapters != -1).any():
            raise EngineError("this instance was loaded without room for adapters")
        return inputs


def _hidden(it: Iteration, before: ov.Tensor | None) -> ov.Tensor:
    if before is not None:
        return before
    if it.hidden is None:
        raise EngineError("this range has no embedding: the iteration must carry hidden states")
    return ov.Tensor(it.hidden)


def _cache_ports(compiled: ov.CompiledModel) -> list[CachePort]:
    """Find the cache inputs, to which the plugin has given type and shape."""
    ports = []
    for port in compiled.inputs:
        if "_cache." in port.get_any_name():
            heads, tokens, width = (port.partial_shape[axis].get_length() for axis in (1, 2, 3))
            # By name: the type object of a port would keep the whole compiled model alive.
            element = port.element_type.get_type_name()
            ports.append(CachePort(port.get_any_name(), element, (heads, tokens, width)))
    return ports


def first_line(error: Exception) -> str:
    """Keep the sentence of an engine's error that says what is wrong, not where in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith("Exception from")]
    return (said or lines or [type(error).__name__])[-1]
