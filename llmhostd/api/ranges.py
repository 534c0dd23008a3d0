"""Which bytes of a file does a caller want? (RFC 9110 §14: one range; whoever asks for several gets all.)"""

import re
from dataclasses import dataclass

_RANGE = re.compile(r"bytes=\s*(\d{0,18})-(\d{0,18})\s*", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Bytes from `begin` to before `end`, and how that is answered."""

    status: int
    begin: int
    end: int
    headers: dict[str, str]


def wanted(asked: str, if_range: str, size_bytes: int, etag: str) -> Wanted:
    """Decide on the headers `Range` and `If-Range` for a file of that size and (bare) ETag: 200, 206 or 416."""
    headers = {"Accept-Ranges": "bytes", "ETag": f'"{etag}"'}
    whole = Wanted(200, 0, size_bytes, headers)
    found = _RANGE.fullmatch(asked)
    if found is None or found[1] + found[2] == "" or if_range.strip() not in ("", f'"{etag}"'):
        return whole
    if found[1]:
        begin, end = int(found[1]), min(int(found[2]) + 1, size_bytes) if found[2] else size_bytes
        if found[2] and int(found[2]) < begin:
            return whole  # no range at all
    else:
        begin, end = max(size_bytes - int(found[2]), 0), size_bytes
    if begin >= end:
        return Wanted(416, 0, 0, headers | {"Content-Range": f"bytes */{size_bytes}"})
    return Wanted(206, begin, end, headers | {"Content-Range": f"bytes {begin}-{end - 1}/{size_bytes}"})
