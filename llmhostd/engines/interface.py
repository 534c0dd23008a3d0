"""What must an engine do for llmhostd to own everything else?

A runner engine computes *ranges of modules*: token ids or hidden states in, logits or hidden states out. Block tables,
KV sizes, batching, chunking, sampling and prefix reuse are llmhostd's (`engines.runner`). One mechanism therefore
serves the whole model, execute-while-load pipelines, module replication and attention that runs elsewhere.

Found by entry point (group `llmhostd.engines`): an `EnginePlugin`, or a plain callable `(node: NodeSpec) -> Engine`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from llmhostd.domain.hardware import NodeKind, NodeSpec
from llmhostd.domain.model import AdapterSlots, ComputePrecision, KvPrecision, ModelShape
from llmhostd.domain.profile import Profile
from llmhostd.domain.reports import LoadStages
from llmhostd.domain.words import Word
from llmhostd.loader.adapter import AdapterWeights
from llmhostd.loader.mapped_reader import Arriving

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Precisions = Mapping[ComputePrecision, tuple[KvPrecision, ...]]
"""In which precisions an engine keeps keys and values, by the precision of its arithmetic; the best choice first."""


class ModuleRange(Word):
    """Layers `first <= i < end`, with the embedding before them and the final norm and head behind them, or not."""

    first: int
    end: int
    embedding: bool = True
    head: bool = True


class Iteration:
    """One forward pass over a flat batch of T tokens of R requests, as paged attention wants it.

    `token_ids [T]`, `positions [T]`, `past_lens [R]` (tokens whose KV is already in the cache),
    `subsequence_begins [R+1]` (offsets into T), `block_indices [B]` (all requests' block tables, one after another),
    `block_indices_begins [R+1]` (offsets into B), `sampled_indices [S]` (offsets into T whose logits are wanted; may be
    empty), `hidden [T, hidden]` (instead of `token_ids`, for a range without the embedding), `adapters [R]` (the
    slot of each request's adapter, -1: none; instead of the array, None: nobody has one).
    """

    __slots__ = (
        "adapters", "block_indices", "block_indices_begins", "hidden", "past_lens", "positions", "sampled_indices",
        "subsequence_begins", "token_ids",
    )  # fmt: skip

    def __init__(
        self,
        *,
        token_ids: Int64s,
        positions: Int64s,
        past_lens: Int32s,
        subsequence_begins: Int32s,
        block_indices: Int32s,
        block_indices_begins: Int32s,
        sampled_indices: Int64s,
        hidden: Floats | None = None,
        adapters: Int32s | None = None,
    ) -> None:
        self.token_ids = token_ids
        self.positions = positions
        self.past_lens = past_lens
        self.subsequence_begins = subsequence_begins
        self.block_indices = block_indices
        self.block_indices_begins = block_indices_begins
        self.sampled_indices = sampled_indices
        self.hidden = hidden
        self.adapters = adapters


class EngineFacts(Word):
    """What an engine says of itself on this machine, for `doctor`, the log and the TUI."""

    name: str
    version: str
    compute: tuple[ComputePrecision, ...]
    """Precisions with hardware support here, fastest first."""
    features: tuple[str, ...]
    """CPU features in use, e.g. `avx512_bf16`, `amx_bf16`."""
    caveats: tuple[str, ...]
    """What is slow or off here, why, and what would help. Never empty silently: no fallback goes unsaid."""
    adapters: bool = False
    """Whether it takes `LoadOptions.adapters`; one that does not must not be given them."""
    arriving: bool = False
    """The same of `LoadOptions.arriving`; one that does not is given a checkpoint when all of it is here."""


class LoadOptions(Word):
    """How to load a checkpoint."""

    compute: ComputePrecision
    kv: KvPrecision
    threads: int
    modules: ModuleRange | None = None
    """None: the whole model."""
    adapters: AdapterSlots | None = None
    """None: no adapters, at no cost."""
    arriving: Arriving | None = None
    """The checkpoint's weights are still coming; `loader.safetensors.open_checkpoint` waits for them with this."""
    crowded: Callable[[], bool] | None = None
    """Says, to any thread, whether others compute on the device now: reading should leave them most of it."""
    early: bool = False
    """Return as soon as modules could compute whose weights are there, where the engine can (`FillingInstance`)."""


class EngineInstance(Protocol):
    """A loaded range of modules. Not thread-safe: one caller at a time; `run` releases the GIL."""

    shape: ModelShape
    block_tokens: int
    """Tokens per KV block."""
    token_step: int
    """Larger iterations are computed as if they had a multiple of this many tokens; 1: as they are."""
    token_counts: tuple[int, ...]
    """Smaller ones as if they had the next of these counts; none: as they are."""
    kv_bytes_per_block: int
    kv_blocks: int
    """Blocks that exist now; block ids are 0 <= id < kv_blocks."""
    stages: LoadStages
    """Where the time of its load went, as far as the engine can tell."""
    settled: bool
    """Whether iterations take as long as they will from now on. Before, they also pack weights, or compute without."""

    def run(self, iteration: Iteration) -> Floats:
        """Compute. Returns logits `[S, vocab]` (a range with the head) or hidden states `[T, hidden]`.

        The result is a view that the next `run` overwrites. The first run packs the weights and is slower, or the first
        few runs pack a part of them each (`settled`).

        Raises EngineError, after which it may be asked again, InstanceLostError, after which it must be unloaded, or
        ProcessLostError, after which the process must end.
        """
        ...

    def pack(self) -> None:
        """Prepare now, on this thread, what packing would wait for otherwise: each of the next runs packs a part."""
        ...

    def resize_kv(self, kv_blocks: int, moves: Sequence[tuple[int, int]] = ()) -> None:
        """Grow or shrink the KV cache; blocks in `moves` are copied (from, to) before the tail is given back.

        Raises EngineError and leaves the old size when memory cannot be had.
        """
        ...

    def held_bytes(self) -> int:
        """What this instance holds beside its KV: packed weights and activations; an estimate by the engine."""
        ...

    def unload(self) -> None:
        """Give everything back to the system. The instance must not be used after, but may be asked what it holds.

        Called from another thread than `run`; another instance may be loaded meanwhile.
        """
        ...


@runtime_checkable
class AdaptableInstance(EngineInstance, Protocol):
    """An instance of an engine whose facts say that it takes adapters."""

    adapter_slots: AdapterSlots | None
    """What it was loaded with."""

    def set_adapter(self, slot: int, weights: AdapterWeights | None) -> None:
        """Fill a slot, or empty it. Updates of layers outside the instance's range of modules are left out.

        May be called from another thread while an iteration runs in which no request has this slot. Raises EngineError
        when the adapter does not fit the slot or the model, with the slot empty; `run` raises it for an iteration with
        an empty slot.
        """
        ...


@runtime_checkable
class InterruptibleInstance(EngineInstance, Protocol):
    """An instance whose iterations can be given up before they are over, as only those that nobody needs may be."""

    def run_unless(self, iteration: Iteration, waits: Callable[[], bool]) -> Floats | None:
        """As `run`; None, soon after `waits` says yes. It is asked now and then, on this thread."""
        ...


@runtime_checkable
class FillingInstance(EngineInstance, Protocol):
    """An instance whose weights may still be on their way (execute-while-load: λScale §4)."""

    filling: bool
    """Whether they are: it may `begin` iterations, and run none. Only if it was loaded `early`."""

    def fill(self, more: Callable[[], None]) -> None:
        """Wait, on the thread that loaded it, until all weights are there and checked; then it is as any other.

        `more` is called whenever further modules could compute. `begin` may run meanwhile, and `unload` if the instance
        is lost. Raises CheckpointError naming what is damaged, after which it must be unloaded.
        """
        ...

    def begin(self, iteration: Iteration) -> None:
        """Compute as much of an iteration as there are weights for, never all: `run` goes on from there.

        Likewise the next `begin`, if it is the same to the last array and nothing else was asked of the instance in
        between. Only computes on weights that were checked. Raises as `run`.
        """
        ...


class Engine(Protocol):
    """One per worker."""

    def facts(self) -> EngineFacts:
        """Say what is fast, slow or off on this machine."""
        ...

    def load(self, checkpoint: Path, options: LoadOptions) -> EngineInstance:
        """Build and compile (warm). Safe to call from a second thread while an instance runs.

        Raises CheckpointError naming the file and tensor, EngineError otherwise.
        """
        ...


class EnginePlugin(Protocol):
    """What an entry point names. Importing it and asking it must be cheap: the daemon does, and computes nothing."""

    def __call__(self, node: NodeSpec) -> Engine:
        """Open the engine on a node; called in that node's worker. Raises OperatorError if it cannot work there."""
        ...

    def precisions(self, node: NodeSpec) -> Precisions:
        """Say what `load` takes on this node, so that a model that could never be loaded is refused when it is added.

        A plain callable without this method says it at the load.
        """
        ...


class DescribedPlugin(Protocol):
    """What a plugin may say besides; who asks looks first whether it does (`engines.discovery`)."""

    kinds: tuple[NodeKind, ...]
    """Devices that it drives: each of such a kind becomes a node of its own accord. CPUs, if a plugin does not say."""
    adapters: bool
    """Whether it takes `LoadOptions.adapters`, as its facts say. Not, if a plugin does not say."""

    def check(self, node: NodeSpec) -> None:
        """Raise OperatorError, beginning with the name of the setting, if the engine can never be this node."""
        ...

    def profile(self, node: NodeSpec, shape: ModelShape) -> Profile | None:
        """Say how long iterations take there, where that is known without measuring. Raises OperatorError."""
        ...
