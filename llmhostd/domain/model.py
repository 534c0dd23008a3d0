"""What is a model: to a caller, to a scheduler, to an engine?"""

import hashlib
from enum import StrEnum

import msgspec

from llmhostd.domain.ids import ModelName, ShapeKey
from llmhostd.domain.words import Word


class Slo(Word):
    """What a waiting person is promised. Seconds."""

    ttft_s: float
    """Time to first token, from arrival."""
    tpot_s: float
    """Time per output token after the first."""


class WeightFormat(StrEnum):
    """How the weights of the linear layers are stored."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"


class ComputePrecision(StrEnum):
    """In what precision the engine computes."""

    F32 = "f32"
    BF16 = "bf16"


class KvPrecision(StrEnum):
    """In what precision keys and values are kept."""

    U8 = "u8"
    BF16 = "bf16"
    F32 = "f32"


class RopeScaling(Word):
    """Llama 3.x rotary scaling (`rope_type: llama3` in config.json)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_tokens: int


class Architecture(Word):
    """A decoder-only transformer as read from config.json. Sizes in elements, lengths in tokens."""

    family: str
    """`llama`, `mistral`, `qwen2` or `qwen3`."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_context_tokens: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    sliding_window_tokens: int | None = None
    """Attention looks back at most this far in layers >= `sliding_from_layer`; None: everywhere."""
    sliding_from_layer: int = 0
    """First layer that uses the window (Qwen2's `max_window_layers`)."""
    tied_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()


class AdapterSlots(Word):
    """Room beside an instance for several low-rank adapters at once, each for some requests of an iteration."""

    slots: int
    rank: int
    """The largest rank that fits into a slot."""
    modules: tuple[str, ...]
    """Names of the layers' linear layers that adapters may update (`checkpoints.adapter.linear_names`)."""
    slot_bytes: int = 0
    """Bytes of one slot, filled or not, where somebody plans with them."""


class ModelShape(Word):
    """Everything that decides what an iteration of a model costs and how many bytes it holds."""

    architecture: Architecture
    weights: WeightFormat
    compute: ComputePrecision
    kv: KvPrecision
    weight_bytes: int
    """Bytes of all tensors as stored."""
    kv_bytes_per_token: int
    adapters: AdapterSlots | None = None
    """Room for adapters that it is loaded with; None: none, at no cost."""

    @property
    def key(self) -> ShapeKey:
        """Stable across processes; equal for all fine-tunes of one base in one format (SLINFER §VI-B)."""
        a, room = self.architecture, self.adapters
        cost = (a.family, a.layers, a.hidden, a.heads, a.kv_heads, a.head_dim, a.intermediate, a.vocab)
        extra: tuple[object, ...] = (a.sliding_window_tokens, a.sliding_from_layer, a.qkv_bias, a.qk_norm)
        kind = f"{a.family}-{a.layers}x{a.hidden}-{self.weights}-{self.compute}-kv{self.kv}"
        if room is not None:
            extra, kind = (*extra, room.modules), f"{kind}-lora{room.slots}x{room.rank}"
        digest = hashlib.blake2b(msgspec.json.encode((cost, extra)), digest_size=4).hexdigest()
        return ShapeKey(f"{kind}-{digest}")

    @property
    def adapter_bytes(self) -> int:
        """Bytes of its room for adapters."""
        return self.adapters.slots * self.adapters.slot_bytes if self.adapters else 0

    def without_room(self) -> "ModelShape":
        """Return the same without room for adapters."""
        return msgspec.structs.replace(self, adapters=None) if self.adapters else self


class LowRankAdapter(Word):
    """What makes a model out of its base: low-rank updates of linear layers (LoRA)."""

    base: ModelName
    identity: str
    """Equal for adapters that compute the same."""
    rank: int
    """The largest of an update."""
    modules: tuple[str, ...]
    """Names of the layers' linear layers that it updates."""
    parameters: int
    bytes: int
    """Of its factors, as stored."""


class ModelSpec(Word):
    """A model as the minds know it: a name, a cost, a promise."""

    name: ModelName
    shape: ModelShape
    """Of an adapter: its base's."""
    slo: Slo
    adapter: LowRankAdapter | None = None
    """None: it is a checkpoint of its own."""

    @property
    def served_by(self) -> ModelName:
        """Whose instances serve it: its base's, or its own."""
        return self.adapter.base if self.adapter else self.name


class ModelState(StrEnum):
    """How near a model is to its first token on a node."""

    COLD = "cold"
    LOADING = "loading"
    WARM = "warm"
    """Compiled and never run: tens of MB, weights packed by its first iteration."""
    RESIDENT = "resident"
    """Has run: weights packed, KV mapped."""
    UNLOADING = "unloading"
    QUARANTINED = "quarantined"
    """It took its worker down several times in a row; an operator must look."""
