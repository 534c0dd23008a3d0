"""Which times need not be measured, because a node's engine knows them?"""

import logging
from collections.abc import Iterator, Sequence

from llmhostd.domain.errors import OperatorError
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.model import ModelSpec
from llmhostd.domain.profile import Profile
from llmhostd.engines.discovery import known_profile
from llmhostd.host.families import shape_on

log = logging.getLogger(__name__)


def known_profiles(nodes: Sequence[NodeSpec], model: ModelSpec) -> Iterator[Profile]:
    """Ask the engine of each node. One that should know and does not is warned of: the model cannot be loaded there."""
    for node in nodes:
        try:
            profile = known_profile(node, shape_on(node, model))
        except OperatorError as error:
            log.warning("node %s cannot serve %s: %s", node.id, model.name, error)
            continue
        if profile is not None:
            yield profile
