"""What do handlers get beside the request? As it is: Litestar must not try to convert our own objects."""

from typing import NamedTuple

from litestar.di import NamedDependency
from litestar.params import SkipValidation
from prometheus_client import CollectorRegistry

from llmhostd.api.policy import HttpPolicy
from llmhostd.api.service import Service
from llmhostd.api.transfers import Transfers


class Serving(NamedTuple):
    """Who answers, and how. In one: for each of several dependencies Litestar would start a task."""

    service: Service
    policy: HttpPolicy


Host = NamedDependency[SkipValidation[Service]]
HostAndPolicy = NamedDependency[SkipValidation[Serving]]
Transferring = NamedDependency[SkipValidation[Transfers]]
Registry = NamedDependency[SkipValidation[CollectorRegistry]]
