"""A bucket: `file_server` behind a check of each request's signature, written from AWS's description of SigV4."""

import datetime
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from file_server import FileServer

ACCESS_KEY, SECRET_KEY, REGION = "AKIDEXAMPLE", "wJalrXUtnFEMI-s3cret", "eu-west-7"
_MOST_SKEW_S = 900


@dataclass
class Bucket(FileServer):
    """Whoever asks without a right signature gets S3's words for what is wrong with it."""

    session_token: str = ""
    """What temporary credentials have to send, if any."""

    def refused(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, bytes, dict[str, str]] | None:
        """See `FileServer`."""
        why = self._wrong(method, path, {name.lower(): value for name, value in headers.items()})
        return (403, f"<Error><Code>{why}</Code><Message>no</Message></Error>".encode(), {}) if why else None

    def _wrong(self, method: str, path: str, headers: Mapping[str, str]) -> str:
        algorithm, _, rest = headers.get("authorization", "").partition(" ")
        if algorithm != "AWS4-HMAC-SHA256":
            return "AccessDenied"
        fields = dict(one.strip().split("=", 1) for one in rest.split(","))
        key, day, region, service, end = fields["Credential"].split("/")
        names = fields["SignedHeaders"].split(";")
        if key != ACCESS_KEY:
            return "InvalidAccessKeyId"
        if (region, service, end) != (REGION, "s3", "aws4_request"):
            return "AuthorizationHeaderMalformed"
        if not {"host", "x-amz-date", "x-amz-content-sha256"} <= set(names) or ("range" in headers) > (
            "range" in names
        ):
            return "SignatureDoesNotMatch"
        if self.session_token and headers.get("x-amz-security-token") != self.session_token:
            return "InvalidToken"
        when = datetime.datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)
        if abs((datetime.datetime.now(datetime.UTC) - when).total_seconds()) > _MOST_SKEW_S:
            return "RequestTimeTooSkewed"
        parts = urlsplit(path)
        canonical = [method, quote(unquote(parts.path), safe="/~"), parts.query]
        canonical += [f"{name}:{' '.join(headers[name].split())}" for name in names]
        canonical += ["", fields["SignedHeaders"], headers["x-amz-content-sha256"]]
        hashed = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{headers['x-amz-date']}\n{day}/{region}/s3/aws4_request\n{hashed}"
        signing = f"AWS4{SECRET_KEY}".encode()
        for part in (day, region, service, end):
            signing = hmac.digest(signing, part.encode(), "sha256")
        right = hmac.new(signing, text.encode(), "sha256").hexdigest()
        return "" if hmac.compare_digest(right, fields["Signature"]) else "SignatureDoesNotMatch"
