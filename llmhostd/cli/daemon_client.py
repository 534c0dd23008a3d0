"""Is a daemon running, and what does it say?

Commands speak REST with it, over the state directory's unix socket or the URL that was given.
"""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import httpx
import msgspec

from llmhostd.cli.root import Place
from llmhostd.config import Config, find_config, load_config, state_directory
from llmhostd.domain.errors import CallerError, LlmhostdError, OperatorError

T = TypeVar("T")

SOCKET_FILE = "llmhostd.sock"
TIMEOUT = httpx.Timeout(connect=5.0, read=600.0, write=60.0, pool=5.0)
"""Reading may take long: a request waits for its model to load, an unload for its requests."""


def config_of(place: Place) -> Config:
    """The settings in force for this command."""
    return load_config(find_config(place.config))


def state_dir_of(place: Place) -> Path:
    """The state directory this command is about."""
    return state_directory(place.state_dir, os.environ, config_of(place))


class DaemonClient:
    """A daemon that answered. Raises CallerError for what it calls the caller's fault (4xx), else OperatorError."""

    def __init__(self, http: httpx.Client, where: str) -> None:
        self.http = http
        self.where = where

    def get(self, path: str, kind: type[T]) -> T:
        """GET and decode."""
        return self._decode(self._send("GET", path), kind)

    def post(self, path: str, body: object, kind: type[T]) -> T:
        """POST JSON and decode."""
        return self._decode(self._send("POST", path, msgspec.json.encode(body)), kind)

    def delete(self, path: str) -> None:
        """DELETE."""
        self._send("DELETE", path)

    def stream(self, path: str, body: object) -> Iterator[bytes]:
        """POST JSON; yields the payloads of the server-sent events that come back."""
        try:
            with self.http.stream("POST", path, content=msgspec.json.encode(body), headers=JSON) as answer:
                if answer.is_error:
                    answer.read()
                    raise _error(answer)
                for line in answer.iter_lines():
                    if line.startswith("data:"):
                        yield line[5:].strip().encode()
        except httpx.TransportError as error:
            raise OperatorError(f"the daemon on {self.where} broke off: {error}") from error

    def _send(self, method: str, path: str, content: bytes | None = None) -> bytes:
        try:
            answer = self.http.request(method, path, content=content, headers=JSON)
        except httpx.TransportError as error:
            raise OperatorError(f"the daemon on {self.where} does not answer: {error}") from error
        if answer.is_error:
            raise _error(answer)
        return answer.content

    def _decode(self, content: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.MsgspecError as error:
            raise OperatorError(f"what listens on {self.where} is not an llmhostd of this version: {error}") from error


_OPERATORS = ("operator_must_act", "invalid_checkpoint")
"""Codes of errors that no other command line would mend."""
JSON: Mapping[str, str] = {"Content-Type": "application/json"}


@contextmanager
def daemon_if_running(place: Place) -> Iterator[DaemonClient | None]:
    """The daemon at `--url`, which must answer; else the one of the state directory, or None if there is none."""
    if place.url:
        url = place.url if "//" in place.url else f"http://{place.url}"
        with httpx.Client(base_url=url, timeout=TIMEOUT, headers=credentials(place.key)) as http:
            client = DaemonClient(http, url)
            client._send("GET", "/healthz")
            yield client
        return
    socket = state_dir_of(place) / SOCKET_FILE
    transport = httpx.HTTPTransport(uds=str(socket))
    with httpx.Client(base_url="http://llmhostd", transport=transport, timeout=TIMEOUT) as http:
        yield DaemonClient(http, str(socket)) if _answers(http, socket) else None


@contextmanager
def running_daemon(place: Place) -> Iterator[DaemonClient]:
    """As above, but none is an error that says how to start one."""
    with daemon_if_running(place) as client:
        if client is None:
            raise OperatorError(
                f"no daemon is running on {state_dir_of(place)}: start one with `llmhostd serve`, "
                "or give --state-dir or --url"
            )
        yield client


def _answers(http: httpx.Client, socket: Path) -> bool:
    """A socket that nobody listens on is what a killed daemon leaves. Raises OperatorError if it is not for us."""
    try:
        http.get("/healthz")
    except httpx.ConnectError as error:
        if f"[Errno {errno.EACCES}]" in str(error):
            raise OperatorError(f"this user may not use {socket}: run as root, or join the daemon's group") from error
        return False
    except httpx.TransportError as error:
        raise OperatorError(f"the daemon on {socket} does not answer: {error}") from error
    return True


def credentials(key: str | None) -> dict[str, str]:
    """The header that opens a daemon with API keys."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def _error(answer: httpx.Response) -> LlmhostdError:
    """The daemon's own sentence, from OpenAI's envelope."""
    try:
        error = answer.json()["error"]
        message, code = str(error["message"]), error.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        message, code = f"the daemon answered {answer.status_code} {answer.reason_phrase}", None
    if answer.is_client_error and answer.status_code != 429 and code not in _OPERATORS:
        return CallerError(message)
    return OperatorError(message)
