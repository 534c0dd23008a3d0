"""How does uvicorn serve inside a daemon that has more to do?"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from litestar import Litestar

_CLOSE_TIMEOUT_S = 3


class Server(uvicorn.Server):
    """Uvicorn, without its signal handlers: the daemon drains first."""

    def __init__(self, app: Litestar, listeners: list[socket.socket]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="warning",
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=_CLOSE_TIMEOUT_S,
                timeout_keep_alive=75,
            )
        )
        self.listening = asyncio.Event()
        self._listeners = listeners

    async def listen(self) -> None:
        """Serve until `stop`."""
        await self.serve(self._listeners)

    def stop(self) -> None:
        """Close listeners and connections soon."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the daemon."""
        yield
