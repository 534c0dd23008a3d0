"""Safetensors files written byte by byte, right or wrong."""

import json
import struct
from pathlib import Path
from typing import Any


def raw_file(path: Path, header: Any, data: bytes = b"", *, header_bytes: int | None = None) -> Path:
    """Write a header (an object, or bytes as they are) and data; `header_bytes` lies about the header's length."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded) if header_bytes is None else header_bytes) + encoded + data)
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    """Make one header entry."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
