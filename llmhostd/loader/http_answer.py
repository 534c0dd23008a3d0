"""What does a server say that does not give a file, and how much is taken of what it gives?"""

import json
import re
from collections.abc import Iterator

import httpx

RETRIED_STATUS = (408, 425, 429, 500, 502, 503, 504)
"""What may pass."""
LONGEST_WAIT_S = 8.0
"""Until a server is asked again that failed again and again."""
_MOST_SAID_BYTES = 4096
_LONGEST_REASON = 300
_S3_CODE = re.compile(rb"<Code>([A-Za-z]{1,64})</Code>")


class LongerError(Exception):
    """More bytes came than were expected."""


def said(response: httpx.Response) -> str:
    """Say for a person what came instead of a file, as far as it tells; nothing in it is a secret that we sent."""
    sentence = f"the server answered {response.status_code} {response.reason_phrase}".strip()
    content = b""
    try:
        for piece in bounded(response, _MOST_SAID_BYTES):
            content += piece
    except (LongerError, httpx.HTTPError):
        pass
    reason, region = _reason(content), response.headers.get("x-amz-bucket-region", "")
    if region.replace("-", "").isalnum():
        reason = f"{reason or 'wrong region'}; the bucket is in {region[:32]}"
    sent = [response.request.headers.get("Authorization", "").rpartition(" ")[2], response.request.url.query.decode()]
    return sentence if not reason or any(one and one in reason for one in sent) else f"{sentence}: {reason}"


def bounded(response: httpx.Response, most_bytes: int) -> Iterator[bytes]:
    """Take in a body as it comes. Raises LongerError once there is more of it."""
    left = most_bytes
    for piece in response.iter_raw():
        left -= len(piece)
        if left < 0:
            raise LongerError
        yield piece


def _reason(content: bytes) -> str:
    """A daemon's own sentence, or S3's word for what is wrong."""
    if found := _S3_CODE.search(content):
        return found[1].decode()
    try:
        message = json.loads(content)["error"]["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return "".join(one for one in message if one.isprintable())[:_LONGEST_REASON] if isinstance(message, str) else ""
