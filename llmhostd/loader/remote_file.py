"""How does a small file come from elsewhere?"""

import time

import httpx

from llmhostd.domain.errors import CheckpointError, OperatorError
from llmhostd.loader.http_answer import RETRIED_STATUS, LongerError, bounded, said
from llmhostd.loader.range_fetch import FetchPolicy
from llmhostd.loader.remote_directory import RemoteDirectory
from llmhostd.loader.remote_url import RemoteUrl


class NotThereError(CheckpointError):
    """The server says that there is no such file."""


def get(there: RemoteDirectory, url: RemoteUrl, name: str, most_bytes: int, policy: FetchPolicy) -> bytes:
    """Fetch all of it: see `get_tagged`."""
    return get_tagged(there, url, name, most_bytes, policy)[0]


def get_tagged(
    there: RemoteDirectory, url: RemoteUrl, name: str, most_bytes: int, policy: FetchPolicy
) -> tuple[bytes, str]:
    """Fetch all of it, and its ETag; `url` is what errors name. A server that is busy is asked again.

    Raises CheckpointError for what is not as it must be, OperatorError when the server cannot be reached.
    """
    what, wait_s = f"{url.shown}/{name}", policy.fetch_retry_wait_s
    for left in reversed(range(policy.fetch_retries + 1)):
        try:
            with there.client.stream("GET", there.address(name)) as response:
                if response.status_code == httpx.codes.OK:
                    return b"".join(bounded(response, most_bytes)), response.headers.get("ETag", "")
                if response.status_code not in RETRIED_STATUS or not left:
                    raise _refused(response, what)
        except LongerError as error:
            raise CheckpointError(f"{what}: is larger than {most_bytes:,} bytes") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise OperatorError(f"{what}: cannot be fetched: {str(error) or type(error).__name__}") from error
        time.sleep(wait_s)
        wait_s *= 2
    raise AssertionError  # the last attempt returned or raised


def _refused(response: httpx.Response, what: str) -> CheckpointError:
    kind = NotThereError if response.status_code == httpx.codes.NOT_FOUND else CheckpointError
    return kind(f"{what}: {said(response)}; a store made by `llmhostd models add` must lie there")
