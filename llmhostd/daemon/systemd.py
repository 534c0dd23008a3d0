"""What does systemd hear of us? Plain datagrams (sd_notify(3)); without systemd, nothing happens."""

import os
import socket
from collections.abc import Mapping


class Notifier:
    """Tells the service manager how we are."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_s = int(environ.get("WATCHDOG_USEC", "0")) / 1e6 if ours else 0.0
        """Say `WATCHDOG=1` more often than this; 0: nobody listens for it."""

    def ready(self, status: str) -> None:
        """Serving from now on."""
        self._send(f"READY=1\nSTATUS={status}")

    def status(self, status: str) -> None:
        """One line for `systemctl status`."""
        self._send(f"STATUS={status}")

    def stopping(self) -> None:
        """Draining."""
        self._send("STOPPING=1\nSTATUS=draining")

    def alive(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def extend(self, seconds: float) -> None:
        """Ask for this much more time to stop."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
            out.sendto(text.encode(), self._address)
