"""Where does the daemon listen?"""

import errno
import socket
from pathlib import Path

from llmhostd.api.policy import HttpPolicy
from llmhostd.domain.errors import OperatorError

SOCKET_FILE = "llmhostd.sock"
_LONGEST_SOCKET_PATH = 107
_BACKLOG = 1024


def bind(policy: HttpPolicy, state_dir: Path) -> list[socket.socket]:
    """Open the TCP and the unix socket. Raises OperatorError naming what is taken."""
    return [_bind_tcp(policy.host, policy.port), _bind_unix(state_dir / SOCKET_FILE)]


def address_of(listener: socket.socket) -> str:
    """As a URL that a client may be given."""
    name = listener.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"http://{host}:{name[1]}"


def _bind_tcp(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError, OverflowError) as error:
        raise OperatorError(f"http.host: cannot listen on {host}:{port}: {error}") from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise OperatorError(f"http.port: {host}:{port} is in use by another program; set another port") from error
        raise OperatorError(f"http.host: cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


def _bind_unix(path: Path) -> socket.socket:
    if len(str(path).encode()) > _LONGEST_SOCKET_PATH:
        raise OperatorError(f"{path}: too long for a unix socket; choose a state directory with a shorter path")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Whoever owns the state owns its socket: one that lies there was left by a daemon that was killed.
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise OperatorError(f"{path}: cannot listen: {error.strerror}") from error
    return listener
