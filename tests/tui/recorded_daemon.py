"""A real HTTP server, over TCP or a unix socket, that answers as a daemon did once: the JSON under `recorded/`."""

import json
import socketserver
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from loopback import Answers

RECORDED = Path(__file__).parent / "recorded"
KINDS = ("host", "models", "nodes", "instances", "requests")
LOOK_AGAIN_S = 0.02


class RecordedDaemon:
    """Starts and stops like a daemon; what it answers may be changed while it runs."""

    def __init__(self, *, socket: Path | None = None) -> None:
        self.answers: dict[str, Any] = {kind: json.loads((RECORDED / f"{kind}.json").read_text()) for kind in KINDS}
        self.events: list[dict[str, Any]] = json.loads((RECORDED / "events.json").read_text())
        self.resumed_after: list[str] = []
        """What `Last-Event-ID` each follower of the events sent."""
        self.port = 0
        self._socket = socket
        self._stopping = threading.Event()
        self._server: socketserver.BaseServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> "RecordedDaemon":
        self._stopping.clear()
        handler = type("Handler", (_Handler,), {"daemon": self, "stopping": self._stopping})
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)
            self._server = _UnixServer(str(self._socket), handler)
        else:
            self._server = _TcpServer(("127.0.0.1", self.port), handler)
            self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(LOOK_AGAIN_S,), daemon=True).start()
        return self

    def stop(self) -> None:
        assert self._server is not None
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()


class _TcpServer(ThreadingHTTPServer):
    allow_reuse_address = True


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class _Handler(Answers):
    timeout = 1
    daemon: RecordedDaemon
    stopping: threading.Event

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        what = self.path.removeprefix("/api/v1/")
        if what == "events":
            self._follow()
        elif what in self.daemon.answers and not self.stopping.is_set():
            self._answer(200, self.daemon.answers[what])
        else:
            self._answer(404, {"error": "no such thing"})

    def _answer(self, status: int, body: Any) -> None:
        connection = "close" if self.stopping.is_set() else "keep-alive"
        self.send(status, json.dumps(body).encode(), {"Content-Type": "application/json", "Connection": connection})

    def _follow(self) -> None:
        after = self.headers.get("Last-Event-ID", "")
        self.daemon.resumed_after.append(after)
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        sent = int(after or 0)
        self.wfile.write(b": hello\n\n")
        while not self.stopping.wait(LOOK_AGAIN_S):
            for event in [one for one in self.daemon.events if one["sequence"] > sent]:
                sent = event["sequence"]
                self.wfile.write(f"id: {sent}\nevent: decision\ndata: {json.dumps(event)}\n\n".encode())

    def address_string(self) -> str:
        return "peer"
