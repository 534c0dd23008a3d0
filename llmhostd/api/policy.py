"""How does the HTTP server meet the network?"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpPolicy:
    """Where the daemon listens, whom it lets in, and how much it takes at once."""

    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback needs `api_keys`."""
    port: int = 11500
    """TCP port; 0 takes a free one and says which."""
    api_keys: tuple[str, ...] = ()
    """SHA-256 of each key that callers may send as `Authorization: Bearer KEY`, in hex (`printf %s KEY | sha256sum`).
    Empty: nobody is asked. The unix socket is guarded by its file permissions instead."""
    max_body_bytes: int = 8_388_608
    """Larger request bodies get 413."""
    max_live_requests: int = 1024
    """Completions under way at once; more get 429. Bounds what the daemon holds in memory."""
    max_event_streams: int = 32
    """Open `/api/v1/events` streams at once; more get 503."""
    max_store_transfers: int = 0
    """Transfers of models' files to other hosts (`models add peer://...` there) at once; more wait. Whoever may call
    may then have the weights, too. 0: models are not handed on."""
    first_byte_s: float = 15.0
    """A streamed answer that has no token yet sends its headers after this long, then a comment as often, so that
    proxies keep the connection. Until then it can still be refused with a proper status."""
