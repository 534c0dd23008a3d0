"""Are these the bytes that were written?

XXH3-128: as fast as memory, so that every load can afford it. It finds accidents, not adversaries.
"""

from pathlib import Path

import xxhash

_PIECE_BYTES = 8 << 20


def checksum(data: bytes | memoryview) -> str:
    """Checksum of a buffer, in hex. Other threads run meanwhile."""
    return xxhash.xxh3_128_hexdigest(data)


def file_checksum(path: Path) -> str:
    """Checksum of a whole file. Raises OSError."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
