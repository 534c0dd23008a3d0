"""How many bytes does an element take, by the name of its type?"""

DTYPE_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
"""Bytes per element of safetensors' types."""


def stored_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor as stored."""
    size = DTYPE_BYTES[dtype]
    for extent in shape:
        size *= extent
    return size
