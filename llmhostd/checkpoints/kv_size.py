"""How many bytes do the keys and values of one token take?"""

from llmhostd.domain.model import Architecture, KvPrecision

_BYTES = {KvPrecision.U8: 1, KvPrecision.BF16: 2, KvPrecision.F32: 4}
_U8_SCALE_BYTES = 8
"""u8 keeps an f32 scale and an f32 zero point beside each head's vector."""


def kv_bytes_per_token(architecture: Architecture, kv: KvPrecision) -> int:
    """Bytes of keys and values over all layers. Sliding windows do not shrink it: the cache keeps every token."""
    vector = architecture.head_dim * _BYTES[kv] + (_U8_SCALE_BYTES if kv is KvPrecision.U8 else 0)
    return 2 * architecture.layers * architecture.kv_heads * vector
