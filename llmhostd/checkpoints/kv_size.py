"""How many bytes do the keys and values of one token take?"""

from llmhostd.domain.model import Architecture, KvPrecision

_BYTES = {KvPrecision.BF16: 2, KvPrecision.F32: 4}
_SCALE_BYTES = 8
"""u8 keeps an f32 scale and an f32 zero point: for a value per head, for keys per channel of a block."""
_BLOCK_TOKENS = 32


def kv_bytes_per_token(architecture: Architecture, kv: KvPrecision) -> int:
    """Bytes of keys and values over all layers. Sliding windows do not shrink it: the cache keeps every token."""
    width = architecture.head_dim
    if kv is KvPrecision.U8:
        key = width + -(-width * _SCALE_BYTES // _BLOCK_TOKENS)
        value = width + _SCALE_BYTES
    else:
        key = value = width * _BYTES[kv]
    return architecture.layers * architecture.kv_heads * (key + value)
