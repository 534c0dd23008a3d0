"""What does an experiment take for granted about machines, models and callers? Each of it a named figure."""

from enum import StrEnum

from llmhostd.domain.words import Word

GIB = 1 << 30
KIB = 1 << 10


class KvGrowth(StrEnum):
    """What growing a KV pool costs. Both explain the paper's one measurement: 32 GB to 64 GB in 1.9 s (fig. 17)."""

    COPY = "copy"
    """What the pool held before is copied; an empty pool costs nothing."""
    ALLOCATE = "allocate"
    """The new pool is allocated whole, so that also an empty one costs its size."""
    IN_PLACE = "in-place"
    """Nothing: a pool is reserved as address space and mapped as it grows, as our engine's on CPUs. On GPUs it would
    need CUDA's virtual memory; the paper's engine does not do it."""


class Assumptions(Word):
    """The set-up of SLINFER §IX-A, as far as paper and artefact tell. Reports name what differs."""

    gpu_memory_gib: float = 78.0
    cpu_memory_gib: float = 256.0
    worker_gib: float = 1.5
    """What the runtime of one worker holds on a GPU beside weights and KV."""
    gpu_block_tokens: int = 16
    cpu_block_tokens: int = 32
    gpu_load_bytes_per_s: float = 12.6 * GIB
    """Weights to a GPU: 7B in 1 s (§IX-A)."""
    cpu_load_s: float = 0.0
    """Models are cached in CPU memory: an instance there is ready at once."""
    unload_s: float = 0.0
    kv_growth: KvGrowth = KvGrowth.COPY
    kv_copy_bytes_per_s: float = 17e9
    kv_allocate_bytes_per_s: float = 34e9
    kv_shrink_bytes_per_s: float = 53e9
    """Of what remains: 32 GB to 16 GB in 0.3 s (fig. 17)."""
    kv_resize_beside: bool = True
    """Other instances of a node compute while one's pool is resized (§VII-C). False: the node computes nothing."""
    least_kv_tokens: int = 4096
    """L_min of eq. 2 where the paper is taken as written."""
    keep_alive_s: float = 1.0
    watermark: float = 0.25
    ttft_tokens_per_s: float = 512.0
    """TTFT SLO = min(max(least, prompt / this), most)."""
    ttft_least_s: float = 0.5
    ttft_most_s: float = 8.0
    tpot_s: float = 0.25
    """Mean over the tokens after the first."""
    ask_again_s: float = 0.25
    """Refused callers ask again this often until their first token would be late; then they are dropped."""
    link_bytes_per_s: float = 100e9 / 8
    """Between nodes, where prefill and decode are apart (§IX-G)."""

    @property
    def kv_copy_s_per_byte(self) -> float:
        """How long a pool grows, per byte that it has."""
        return 1 / self.kv_copy_bytes_per_s if self.kv_growth is KvGrowth.COPY else 0.0

    @property
    def kv_allocate_s_per_byte(self) -> float:
        """How long a pool grows, per byte that it gets."""
        return 1 / self.kv_allocate_bytes_per_s if self.kv_growth is KvGrowth.ALLOCATE else 0.0

    def ttft_s(self, prompt_tokens: int) -> float:
        """TTFT SLO of a prompt (§IX-A)."""
        return min(max(self.ttft_least_s, prompt_tokens / self.ttft_tokens_per_s), self.ttft_most_s)


class Size(Word):
    """One of the paper's models."""

    published_as: str
    """Its name in the profiles file."""
    weight_gib: float
    kv_kib_per_token: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    max_context_tokens: int
    gpus: int = 1
    """GPUs of one instance (tensor parallelism)."""


SIZES: dict[str, Size] = {
    "3b": Size(
        published_as="llama-3.2-3b", weight_gib=6.1, kv_kib_per_token=112, layers=28, hidden=3072, heads=24,
        kv_heads=8, intermediate=8192, vocab=128256, max_context_tokens=131072,
    ),
    "7b": Size(
        published_as="llama-2-7b", weight_gib=12.6, kv_kib_per_token=512, layers=32, hidden=4096, heads=32,
        kv_heads=32, intermediate=11008, vocab=32000, max_context_tokens=4096,
    ),
    "8b": Size(  # weights and KV derived from the architecture: 8.03e9 bf16 parameters; 2 * 32 * 8 * 128 bf16 values
        published_as="llama-3.1-8b", weight_gib=15.0, kv_kib_per_token=128, layers=32, hidden=4096, heads=32,
        kv_heads=8, intermediate=14336, vocab=128256, max_context_tokens=131072,
    ),
    "13b": Size(
        published_as="llama-2-13b", weight_gib=24.3, kv_kib_per_token=800, layers=40, hidden=5120, heads=40,
        kv_heads=40, intermediate=13824, vocab=32000, max_context_tokens=4096,
    ),
}  # fmt: skip
"""By the names of the command line."""
