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


class ModelShape(Word):
    """Everything that decides what an iteration of a model costs and how many bytes it holds."""

    architecture: Architecture
    weights: WeightFormat
    compute: ComputePrecision
    kv: KvPrecision
    weight_bytes: int
    """Bytes of all tensors as stored."""
    kv_bytes_per_token: int

    @property
    def key(self) -> ShapeKey:
        """Stable across processes; equal for all fine-tunes of one base in one format (SLINFER §VI-B)."""
        a = self.architecture
        cost = (a.family, a.layers, a.hidden, a.heads, a.kv_heads, a.head_dim, a.intermediate, a.vocab)
        extra = (a.sliding_window_tokens, a.sliding_from_layer, a.qkv_bias, a.qk_norm)
        digest = hashlib.blake2b(msgspec.json.encode((cost, extra)), digest_size=4).hexdigest()
        return ShapeKey(f"{a.family}-{a.layers}x{a.hidden}-{self.weights}-{self.compute}-kv{self.kv}-{digest}")


class ModelSpec(Word):
    """A model as the minds know it: a name, a cost, a promise."""

    name: ModelName
    shape: ModelShape
    slo: Slo


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
