"""Started by the daemon's supervisor with two inherited descriptors: a socket to the daemon, and the crash note."""

import faulthandler
import logging
import os
import socket
import sys

from llmhostd.domain.errors import ProcessLostError
from llmhostd.engines.crash_note import CrashNote
from llmhostd.worker.compose import FAILED, serve
from llmhostd.worker.process import die_with_parent, leave_signals_to_parent


def main() -> None:
    """`python -m llmhostd.worker SOCKET_FD NOTE_FD PARENT_PID`."""
    socket_fd, note_fd, parent_pid = map(int, sys.argv[1:])
    die_with_parent(parent_pid)
    leave_signals_to_parent()
    faulthandler.enable()
    logging.basicConfig(format="llmhostd worker: %(levelname)s: %(message)s")
    status = FAILED
    try:
        status = serve(socket.socket(fileno=socket_fd), CrashNote(note_fd))
    except ProcessLostError as error:
        logging.getLogger(__name__).critical("this worker must end: %s", error)
    except Exception:
        # The log gets all of it, the daemon the exit status.
        logging.getLogger(__name__).exception("a mistake of llmhostd ends this worker")
    # Not through the interpreter's shutdown: a builder thread may be deep inside an engine.
    sys.stderr.flush()
    os._exit(status)


main()
