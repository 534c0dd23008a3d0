"""Are these the bytes that were written?

XXH3-128: as fast as memory, so that every load can afford it. It finds accidents, not adversaries.
"""

import xxhash


def checksum(data: bytes | memoryview) -> str:
    """Checksum of a buffer, in hex. Other threads run meanwhile."""
    return xxhash.xxh3_128_hexdigest(data)
