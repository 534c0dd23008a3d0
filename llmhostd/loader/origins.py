"""From which of several places do a store's weights come now? From the first one, until it fails; then the next."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from llmhostd.domain.errors import CheckpointError, LlmhostdError
from llmhostd.loader.range_fetch import FetchPolicy, RangeFetch
from llmhostd.loader.remote_directory import RemoteDirectory, open_directory
from llmhostd.loader.remote_url import RemoteUrl, parse_url
from llmhostd.loader.store_index import DATA_FILE, Address, Remote

_RETRIES = 1
"""Where somebody else has the weights, too, nobody is asked for long."""


@dataclass(frozen=True, eq=False)
class Origin:
    """One place."""

    address: Address
    url: RemoteUrl
    directory: RemoteDirectory
    policy: FetchPolicy
    data_bytes: int

    def ranges(self, stopped: Callable[[], bool]) -> RangeFetch:
        """Fetch ranges of the data file from here: one at a time."""
        return RangeFetch(
            self.directory.client, self.directory.address(DATA_FILE), self.data_bytes, self.policy, stopped
        )


class Origins:
    """The places of one store, for several threads."""

    def __init__(self, remote: Remote, policy: FetchPolicy) -> None:
        """Raises CheckpointError when none of them can be asked."""
        self._left = list(remote.addresses)
        self._data_bytes, self._policy = remote.data_bytes, policy
        self._failures: list[str] = []
        self._lock = threading.Lock()
        self._now: Origin | None = None
        self._open()

    @property
    def now(self) -> Origin:
        """Whom to ask."""
        with self._lock:
            if self._now is None:
                raise CheckpointError("; ".join(self._failures))
            return self._now

    def failed(self, origin: Origin, error: LlmhostdError) -> None:
        """Ask this one no more. Raises CheckpointError with what was wrong everywhere, if no other is left."""
        with self._lock:
            if origin is not self._now:
                return  # another thread found out before
            self._failures.append(str(error))
            self._open()

    def _open(self) -> None:
        self._now = None
        while self._left:
            address = self._left.pop(0)
            policy = self._policy if not self._left else _impatient(self._policy)
            try:
                url = parse_url(address.url)
                directory = open_directory(url, address.key, policy, policy.fetch_connections)
            except LlmhostdError as error:
                self._failures.append(str(error))
                continue
            self._now = Origin(address, url, directory, policy, self._data_bytes)
            return
        raise CheckpointError("; ".join(self._failures) or "nobody is known who has the weights")


def _impatient(policy: FetchPolicy) -> FetchPolicy:
    return replace(policy, fetch_retries=min(policy.fetch_retries, _RETRIES))
