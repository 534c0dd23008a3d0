"""Who could reach the daemon where it listens?"""

import ipaddress

from llmhostd.api.policy import HttpPolicy
from llmhostd.domain.errors import OperatorError


def check_exposure(policy: HttpPolicy) -> None:
    """Refuse a configuration that would let strangers in. Raises OperatorError."""
    for index, one in enumerate(policy.api_keys):
        if len(one) != 64 or set(one.lower()) - set("0123456789abcdef"):
            raise OperatorError(f"http.api_keys[{index}]: is not a SHA-256 in hex (printf %s KEY | sha256sum)")
    if not policy.api_keys and not is_local(policy.host):
        raise OperatorError(
            f"http.host: {policy.host} can be reached by others, and http.api_keys is empty; set a key, or 127.0.0.1"
        )


def is_local(host: str) -> bool:
    """Whether a host name or address means this machine only."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
