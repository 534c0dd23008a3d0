"""Who may call?

The unix socket is guarded by its file permissions. Over TCP, API keys are asked for when any are configured; without
them the daemon listens on loopback only, where a browser is the one stranger: a page from elsewhere must not reach
it, neither by a form nor by a name that it lets resolve to 127.0.0.1.
"""

import hashlib
from typing import Any
from urllib.parse import urlsplit

from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException, PermissionDeniedException
from litestar.handlers import BaseRouteHandler

from llmhostd.api.exposure import is_local
from llmhostd.api.policy import HttpPolicy

Connection = ASGIConnection[Any, Any, Any, Any]


class Gate:
    """A Litestar guard over everything but health checks."""

    def __init__(self, policy: HttpPolicy) -> None:
        self._hashes = frozenset(one.lower() for one in policy.api_keys)

    async def __call__(self, connection: Connection, _handler: BaseRouteHandler) -> None:
        """Let pass, or raise what becomes 401 or 403. A coroutine: Litestar would run anything else in a thread."""
        server = connection.scope["server"]
        if server is None or server[1] is None:  # a unix socket has a path and no port
            return
        if self._hashes:
            self._check_key(connection.headers.get("authorization", ""))
        else:
            _check_local(connection)

    def _check_key(self, authorization: str) -> None:
        scheme, _, key = authorization.partition(" ")
        # Keys are random and long, so a plain hash of them tells nothing, and comparing hashes leaks nothing of use.
        if scheme.lower() != "bearer" or hashlib.sha256(key.strip().encode()).hexdigest() not in self._hashes:
            raise NotAuthorizedException(
                "the API key is missing or unknown; send `Authorization: Bearer KEY`",
                headers={"WWW-Authenticate": "Bearer"},
            )


def _check_local(connection: Connection) -> None:
    for header in ("host", "origin"):
        value = connection.headers.get(header)
        if value is None:
            continue
        try:
            host = urlsplit(value if header == "origin" else f"//{value}").hostname or ""
        except ValueError:
            host = ""
        if not is_local(host):
            raise PermissionDeniedException(
                f"header {header}: {value[:100]!r} is not this machine; set http.api_keys to serve others"
            )
