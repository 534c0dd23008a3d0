"""What came from the daemon or from the builder thread, without waiting for it while there is work?"""

import logging
import os
import select
import socket

from llmhostd.domain.words import Message
from llmhostd.engines.frames import BrokenStreamError, DownFrame, FrameError, down_reader, encode_frame

log = logging.getLogger(__name__)

_RECEIVE_BYTES = 1 << 18


class DaemonGoneError(Exception):
    """The other end of the socket was closed: nobody wants anything of this process any more."""


class Link:
    """One end of the socket to the daemon, and a bell that other threads ring."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._reader = down_reader()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._poll.register(self._bell, select.POLLIN)

    def ring(self) -> None:
        """End a wait in `receive`. From any thread."""
        os.eventfd_write(self._bell, 1)

    def send(self, message: Message) -> None:
        """Send one frame; waits only when the daemon has not read for a long time."""
        try:
            self._socket.sendall(encode_frame(message))
        except OSError as error:
            raise DaemonGoneError from error

    def waits(self) -> bool:
        """Whether something has arrived that nobody received yet, or the bell rang."""
        return bool(self._poll.poll(0))

    def receive(self, *, wait: bool, wait_s: float | None = None) -> list[DownFrame]:
        """Return what has arrived; if `wait` and nothing has, sleep until something does or the bell rings.

        No longer than `wait_s` (None: for ever).

        Raises DaemonGoneError at the end of the stream. A frame that is no message is noted in the log and left out.
        """
        timeout_ms = 0.0 if not wait else None if wait_s is None else wait_s * 1000
        for fd, _ in self._poll.poll(timeout_ms):
            if fd == self._bell:
                os.eventfd_read(self._bell)
            else:
                self._take_in()
        frames: list[DownFrame] = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def _take_in(self) -> None:
        try:
            data = self._socket.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            raise DaemonGoneError from error
        if not data:
            raise DaemonGoneError
        self._reader.feed(data)

    def _next(self) -> DownFrame | None:
        while True:
            try:
                return self._reader.next_message()
            except BrokenStreamError as error:
                log.exception("the daemon sends what are no frames")
                raise DaemonGoneError from error
            except FrameError:
                log.exception("the daemon sent what is no command; left out")
