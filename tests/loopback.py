"""A real HTTP server on a free port of the loopback interface, for whoever says how it answers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Answers(BaseHTTPRequestHandler):
    """Answers with bodies, and may break off."""

    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        with suppress(ConnectionError):  # whoever asked has gone, as a client may between two requests
            super().handle()

    def log_message(self, *args: object) -> None:
        pass

    def send(self, status: int, body: bytes, headers: dict[str, str], cut: int | None = None) -> None:
        """Answer. `cut`: break the connection after so many bytes of the body."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            if self.command != "HEAD":
                self.pour(body if cut is None else body[:cut], status)
        except OSError:
            self.close_connection = True
        if cut is not None:
            self.close_connection = True

    def pour(self, body: bytes, status: int) -> None:
        """Send a body."""
        self.wfile.write(body)


@contextmanager
def listening(handler: type[Answers]) -> Iterator[str]:
    """Serve; yields the origin, `http://HOST:PORT`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
