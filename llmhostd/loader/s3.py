"""How are files of an S3 bucket asked for, and by whose credentials?

By the same ranges as any other's; each request is signed (SigV4). Credentials, region and endpoint come from where the
other tools of this world have them: environment, profile, the machine's role. Nothing of them is kept or shown.
"""

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from llmhostd.domain.errors import OperatorError

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_REGION = "us-east-1"
"""As other tools take it where nobody says one."""
_SIGNED = ("Range",)
"""Headers that are signed, beside those that have to be."""


class SignedRequests(httpx.Auth):
    """Signs each request as it leaves."""

    def __init__(self, region: str) -> None:
        """Find credentials. Raises OperatorError when there are none, or nothing to sign with."""
        self._region = region
        with _botocore() as self._library:
            self._credentials = self._library.session.Session().get_credentials()
        if self._credentials is None:
            raise OperatorError(
                "s3: there are no credentials in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), in a"
                " profile (AWS_PROFILE), or of this machine; for a public bucket give its https: address"
            )

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """See `httpx.Auth`. Credentials that run out are renewed; raises OperatorError when they cannot be."""
        headers = {name: request.headers[name] for name in _SIGNED if name in request.headers}
        with _botocore() as library:
            signed = library.awsrequest.AWSRequest(method=request.method, url=str(request.url), headers=headers)
            credentials = self._credentials.get_frozen_credentials()
            library.auth.S3SigV4Auth(credentials, "s3", self._region).add_auth(signed)
        request.headers.update(dict(signed.headers.items()))
        yield request


def address_of_bucket(bucket: str, endpoint: str, region: str) -> tuple[str, str]:
    """Address of a bucket, without a slash at its end, and its region. Raises OperatorError.

    `endpoint`, `region`: as configured; empty: as the environment or a profile says.
    """
    with _botocore() as library:
        session = library.session.Session()
        region = region or _first(_REGIONS) or session.get_config_variable("region") or _REGION
        known = session.get_component("endpoint_resolver").construct_endpoint("s3", region)
    endpoint = endpoint or _first(_ENDPOINTS)
    if endpoint:
        if not endpoint.startswith(("http://", "https://")):
            raise OperatorError(f"fetch.s3_endpoint: {endpoint!r} is no http: or https: address")
        return f"{endpoint.rstrip('/')}/{bucket}", region
    if known is None:
        raise OperatorError(f"fetch.s3_region: {region!r} is not known; for a server of yours, set fetch.s3_endpoint")
    # A certificate for *.s3.REGION is none for a name with more dots.
    host = known["hostname"]
    return (f"https://{host}/{bucket}" if "." in bucket else f"https://{bucket}.{host}"), region


def _first(names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")


@contextmanager
def _botocore() -> Iterator[Any]:
    """Use the library. What it complains of is somebody's configuration."""
    try:
        import botocore.auth
        import botocore.awsrequest
        import botocore.exceptions
        import botocore.session
    except ImportError as error:
        raise OperatorError("s3: needs botocore, which is not installed: pip install 'llmhostd[s3]'") from error
    try:
        yield botocore
    except botocore.exceptions.BotoCoreError as error:
        raise OperatorError(f"s3: {error}") from error
