"""What does systemd hear of us? Plain datagrams (sd_notify(3)); without systemd, nothing happens.

Nobody's token waits for a manager that does not listen: what it must hear is said again until it does.
"""

import logging
import os
import socket
from collections.abc import Mapping

log = logging.getLogger(__name__)

_AGAIN_S = 1.0


class Notifier:
    """Tells the service manager how we are."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_s = int(environ.get("WATCHDOG_USEC", "0")) / 1e6 if ours else 0.0
        """Say `WATCHDOG=1` more often than this; 0: nobody listens for it."""
        self._unsaid: list[str] = []
        self._warned = False

    @property
    def period_s(self) -> float:
        """Call `alive` so often; 0: never."""
        return (self.watchdog_s / 2 or _AGAIN_S) if self._address else 0.0

    def ready(self, status: str) -> None:
        """Serving from now on."""
        self._send(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        """Draining."""
        self._send("STOPPING=1\nSTATUS=draining")

    def alive(self) -> None:
        """Feed the watchdog, after what it has not heard yet."""
        self._say()
        if self.watchdog_s and not self._unsaid:
            self._send("WATCHDOG=1")
            self._unsaid.clear()  # the next is as good

    def extend(self, seconds: float) -> None:
        """Ask for this much more time to stop."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def _send(self, text: str) -> None:
        if self._address:
            self._unsaid.append(text)
            self._say()

    def _say(self) -> None:
        """Say what is unsaid, in order, as far as it is taken now."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as out:
            while self._unsaid:
                try:
                    out.sendto(self._unsaid[0].encode(), self._address)
                except BlockingIOError:
                    return
                except OSError as error:
                    if not self._warned:
                        log.warning("the service manager at %s does not hear us: %s", self._address, error.strerror)
                    self._warned = True
                    return
                del self._unsaid[0]
