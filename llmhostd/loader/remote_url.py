"""Where does a store lie behind HTTP, and what of its address may anybody see?

An address may hold a secret, before its host (`https://user:secret@host/`) or in its query (a signature, a token). It
goes to that server, and into a file that only we may read; logs, errors and the API say `shown`.
"""

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

import httpx

from llmhostd.domain.errors import CallerError, CheckpointError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LONGEST = 4096
_REDIRECTS = 5


@dataclass(frozen=True)
class RemoteUrl:
    """The directory of a store on a web server."""

    origin: str
    """Scheme, host and port."""
    path: str
    """Begins with a slash and ends without one, quoted."""
    query: str
    """Sent with every file's name; it may be a secret."""
    credentials: tuple[str, str] | None

    @property
    def shown(self) -> str:
        """What a person may see of it."""
        return self.origin + self.path

    @property
    def name(self) -> str:
        """The last part of its path."""
        return unquote(self.path.rpartition("/")[2])

    def file(self, name: str) -> str:
        """Address of a file in it."""
        return f"{self.shown}/{quote(name)}" + (f"?{self.query}" if self.query else "")


def is_url(text: str) -> bool:
    """Whether this is meant to be an address and not a path."""
    return _URL.match(text) is not None


def parse_url(text: str) -> RemoteUrl:
    """Check an address. Raises CallerError that says what is wrong with it, and shows no secret of it."""
    if len(text) > _LONGEST or any(character <= " " or character == "\x7f" for character in text):
        raise CallerError("path: this address is too long, or has spaces or control characters in it", field="path")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise CallerError("path: this address has a host or a port that cannot be", field="path") from error
    if parts.scheme not in ("http", "https"):
        raise CallerError(f"path: {parts.scheme}: is not read; expected an https: or http: address", field="path")
    path = parts.path.rstrip("/")
    if not host or not path:
        raise CallerError("path: this address needs a host and the path of a store's directory there", field="path")
    host = f"[{host}]" if ":" in host else host
    origin = f"{parts.scheme}://{host}" + (f":{port}" if port else "")
    credentials = (unquote(parts.username or ""), unquote(parts.password or "")) if "@" in parts.netloc else None
    return RemoteUrl(origin, quote(path, safe="/%:@!$&'()*+,;=~-._"), parts.query, credentials)


def open_client(url: RemoteUrl, timeout_s: float, connections: int) -> httpx.Client:
    """Open a client for one store: few redirects, none from https to http, credentials for its own host alone."""

    def check(request: httpx.Request) -> None:
        if url.origin.startswith("https:") and request.url.scheme != "https":
            raise CheckpointError(f"{url.shown}: leads from https to {request.url.scheme}, which is not followed")

    return httpx.Client(
        auth=url.credentials,
        timeout=timeout_s,
        limits=httpx.Limits(max_connections=connections),
        follow_redirects=True,
        max_redirects=_REDIRECTS,
        headers={"Accept-Encoding": "identity"},
        event_hooks={"request": [check]},
    )
