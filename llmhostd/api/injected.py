"""What do handlers get beside the request? As it is: Litestar must not try to convert our own objects."""

from typing import Annotated

from litestar.params import Dependency
from prometheus_client import CollectorRegistry

from llmhostd.api.policy import HttpPolicy
from llmhostd.api.service import Service

_AS_IT_IS = Dependency(skip_validation=True)

Host = Annotated[Service, _AS_IT_IS]
Policy = Annotated[HttpPolicy, _AS_IT_IS]
Registry = Annotated[CollectorRegistry, _AS_IT_IS]
