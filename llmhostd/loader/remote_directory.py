"""How is a directory of files elsewhere opened?"""

from dataclasses import dataclass
from urllib.parse import quote

import httpx

from llmhostd.domain.errors import CheckpointError
from llmhostd.loader.range_fetch import FetchPolicy
from llmhostd.loader.remote_url import RemoteUrl
from llmhostd.loader.s3 import SignedRequests, address_of_bucket

_REDIRECTS = 5


@dataclass(frozen=True)
class RemoteDirectory:
    """An open one. Close its client."""

    client: httpx.Client
    base: str
    query: str

    def address(self, name: str) -> str:
        """Address of a file in it. It may hold a secret."""
        return f"{self.base}/{quote(name)}" + (f"?{self.query}" if self.query else "")

    def __enter__(self) -> "RemoteDirectory":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()


def open_directory(url: RemoteUrl, key: str, policy: FetchPolicy, connections: int) -> RemoteDirectory:
    """Open the directory of a store; `key`: a peer's.

    Few redirects are followed, none from https to http, with credentials for its own host alone; for a bucket none, as
    a signature is for one host. Raises OperatorError when requests to a bucket cannot be signed.
    """
    limits, timeout_s = httpx.Limits(max_connections=connections), policy.fetch_timeout_s
    headers = {"Accept-Encoding": "identity"}
    if url.bucket:
        base, region = address_of_bucket(url.bucket, policy.s3_endpoint, policy.s3_region)
        client = httpx.Client(auth=SignedRequests(region), timeout=timeout_s, limits=limits, headers=headers)
        return RemoteDirectory(client, base + url.path, "")

    def check(request: httpx.Request) -> None:
        if url.origin.startswith("https:") and request.url.scheme != "https":
            raise CheckpointError(f"{url.shown}: leads from https to {request.url.scheme}, which is not followed")

    client = httpx.Client(
        auth=url.credentials,
        timeout=timeout_s,
        limits=limits,
        follow_redirects=True,
        max_redirects=_REDIRECTS,
        headers=headers | ({"Authorization": f"Bearer {key}"} if key and url.of_peer else {}),
        event_hooks={"request": [check]},
    )
    return RemoteDirectory(client, url.shown, url.query)
