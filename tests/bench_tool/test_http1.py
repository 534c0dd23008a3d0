"""However the bytes are cut on their way, the same events come out."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmhostd.bench.http1 import EventLines, PeerError, Response

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
PAYLOADS = [b'{"a": 1}', b"", b"[DONE]", b"x" * 300]
BODY = b"".join(b"data: %s\r\n\r\n" % payload for payload in PAYLOADS) + b": a comment\n"


def chunked(body: bytes, sizes: list[int]) -> bytes:
    wire, at = b"", 0
    for size in [*sizes, len(body)]:
        if piece := body[at : at + size]:
            wire += b"%x;ext=1\r\n%s\r\n" % (len(piece), piece)
            at += size
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + wire + b"0\r\n\r\n"


def read(wire: bytes, cuts: list[int]) -> tuple[list[bytes], Response]:
    response, events, found = Response(), EventLines(), []
    edges = [0, *sorted(cut % len(wire) for cut in cuts), len(wire)]
    for first, last in itertools.pairwise(edges):
        if first < last:
            found += events.feed(response.feed(wire[first:last]))
    return found, response


cut_points = st.lists(st.integers(min_value=0, max_value=10_000), max_size=40)


@given(sizes=st.lists(st.integers(min_value=1, max_value=60), max_size=20), cuts=cut_points)
def test_chunked(sizes: list[int], cuts: list[int]) -> None:
    found, response = read(chunked(BODY, sizes), cuts)
    assert found == PAYLOADS
    assert (response.complete, response.status) == (True, 200)
    response.close()


@given(cuts=cut_points)
def test_content_length(cuts: list[int]) -> None:
    found, response = read(HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY, cuts)
    assert (found, response.complete) == (PAYLOADS, True)


@given(cuts=cut_points)
def test_until_close(cuts: list[int]) -> None:
    found, response = read(HEAD + b"\r\n" + BODY, cuts)
    assert (found, response.complete) == (PAYLOADS, False)
    response.close()
    assert response.complete


@given(length=st.integers(min_value=0, max_value=len(chunked(BODY, [7, 50])) - 1))
def test_a_cut_answer_is_never_complete(length: int) -> None:
    response = Response()
    response.feed(chunked(BODY, [7, 50])[:length])
    if response.complete:
        # Only the very last line break, which nothing depends on, may be missing.
        assert length >= len(chunked(BODY, [7, 50])) - 2
    else:
        with pytest.raises(PeerError, match="in the middle"):
            response.close()


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0-OpenSSH_9\r\n\r\n\r\n",
        b"HTTP/1.1 what\r\n\r\n",
        HEAD + b"Content-Length: many\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_not_http(wire: bytes) -> None:
    with pytest.raises(PeerError):
        Response().feed(wire)
