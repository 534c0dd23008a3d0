"""What did a real daemon decide? Its own stream of decisions, followed from a thread."""

import json
import threading
from collections import defaultdict

import httpx
from daemon_process import DaemonProcess


class Decided:
    """Follows `/api/v1/events`, which begins with what was decided before. Use as a context manager."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self._client = httpx.Client(base_url=daemon.url, timeout=60)
        self._rows: list[dict] = []
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> "Decided":
        self._thread.start()
        assert self._begun.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def places(self) -> list[list[str]]:
        """The nodes that each request was submitted to, in order, request by request."""
        nodes: dict[str, list[str]] = defaultdict(list)
        for row in list(self._rows):
            if row["kind"] == "SubmitRequest":
                nodes[row["subject"]].append(row["node_id"])
        return list(nodes.values())

    def _follow(self) -> None:
        try:
            with self._client.stream("GET", "/api/v1/events") as answer:
                self._begun.set()
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        self._rows.append(json.loads(line.removeprefix("data: ")))
        except httpx.HTTPError:
            return
