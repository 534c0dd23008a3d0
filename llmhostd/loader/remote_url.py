"""Where does a store lie behind a network, and what of its address may anybody see?

An address may hold a secret, before its host (`https://user:secret@host/`) or in its query (a signature, a token). It
goes to that server, and into a file that only we may read; logs, errors and the API say `shown`. The key of a peer is
kept beside its address, those of a bucket are not kept at all (`loader.s3`).
"""

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, unquote, urlsplit

from llmhostd.domain.errors import CallerError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LONGEST = 4096
_PEER_PORT = 11500
_OF_PEER = re.compile(r"/api/v1/models/([^/]+)/store")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_SAFE = "/%:@!$&'()*+,;=~-._"


@dataclass(frozen=True)
class RemoteUrl:
    """The directory of a store elsewhere."""

    origin: str
    """Scheme, host and port; of a bucket `s3://BUCKET`."""
    path: str
    """Begins with a slash and ends without one, quoted."""
    query: str = ""
    """Sent with every file's name; it may be a secret."""
    credentials: tuple[str, str] | None = None

    @property
    def shown(self) -> str:
        """What a person may see of it."""
        return self.origin + self.path

    @property
    def of_peer(self) -> bool:
        """Whether it is a model of another daemon."""
        return _OF_PEER.fullmatch(self.path) is not None

    @property
    def bucket(self) -> str:
        """The bucket that it is in; empty: it is in none."""
        scheme, _, name = self.origin.partition("://")
        return name if scheme == "s3" else ""

    @property
    def name(self) -> str:
        """What the model is called there: the last part of its path, or the peer's name for it."""
        found = _OF_PEER.fullmatch(self.path)
        return unquote(found[1] if found else self.path.rpartition("/")[2])


def is_url(text: str) -> bool:
    """Whether this is meant to be an address and not a path."""
    return _URL.match(text) is not None


def parse_url(text: str) -> RemoteUrl:
    """Check an address. Raises CallerError that says what is wrong with it, and shows no secret of it."""
    if len(text) > _LONGEST or any(character <= " " or character == "\x7f" for character in text):
        raise _wrong("is too long, or has spaces or control characters in it")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise _wrong("has a host or a port that cannot be") from error
    path = quote(parts.path.rstrip("/"), safe=_SAFE)
    match parts.scheme:
        case "s3":
            return _in_bucket(parts)
        case "peer":
            return _of_peer(parts, host, port, path)
        case "http" | "https":
            return _behind_http(parts, host, port, path)
    raise CallerError(
        f"path: {parts.scheme}: is not read; expected an https:, http:, peer: or s3: address", field="path"
    )


def _behind_http(parts: SplitResult, host: str, port: int | None, path: str) -> RemoteUrl:
    if not host or not path:
        raise _wrong("needs a host and the path of a store's directory there")
    credentials = (unquote(parts.username or ""), unquote(parts.password or "")) if "@" in parts.netloc else None
    return RemoteUrl(f"{parts.scheme}://{_netloc(host, port)}", path, parts.query, credentials)


def _of_peer(parts: SplitResult, host: str, port: int | None, path: str) -> RemoteUrl:
    name = path.removeprefix("/")
    if not host or not name or "/" in name or parts.query:
        raise _wrong("is none of a peer's model: peer://HOST:PORT/MODEL")
    if "@" in parts.netloc:
        raise _wrong("holds what may be a key; give that as --peer-key, or in LLMHOSTD_PEER_KEY")
    return RemoteUrl(f"http://{_netloc(host, port or _PEER_PORT)}", f"/api/v1/models/{name}/store")


def _in_bucket(parts: SplitResult) -> RemoteUrl:
    path = quote(unquote(parts.path.rstrip("/")), safe="/~")  # as signatures want it
    if "@" in parts.netloc or parts.query:
        raise _wrong("holds what may be a secret; those of a bucket come from the environment or a profile")
    if not _BUCKET.fullmatch(parts.netloc) or not path:
        raise _wrong("is none of a store in a bucket: s3://BUCKET/PATH/NAME")
    return RemoteUrl(f"s3://{parts.netloc}", path)


def _netloc(host: str, port: int | None) -> str:
    return (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")


def _wrong(why: str) -> CallerError:
    return CallerError(f"path: this address {why}", field="path")
