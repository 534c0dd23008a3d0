"""What do handlers get beside the request? As it is: Litestar must not try to convert our own objects."""

from litestar.di import NamedDependency
from litestar.params import SkipValidation
from prometheus_client import CollectorRegistry

from llmhostd.api.policy import HttpPolicy
from llmhostd.api.service import Service
from llmhostd.api.transfers import Transfers

Host = NamedDependency[SkipValidation[Service]]
Policy = NamedDependency[SkipValidation[HttpPolicy]]
Transferring = NamedDependency[SkipValidation[Transfers]]
Registry = NamedDependency[SkipValidation[CollectorRegistry]]
