"""Which engines are installed, and what do they say of this machine?"""

from collections.abc import Iterator

import msgspec

from llmhostd.cli.checks import Finding, broken, good, slow
from llmhostd.daemon.nodes import node_layout
from llmhostd.domain.errors import LlmhostdError
from llmhostd.engines.discovery import engine_names, find_engine
from llmhostd.engines.interface import EngineFacts


def check_engines() -> Iterator[Finding]:
    """Each engine's version and precisions, and its caveats one by one."""
    node = node_layout().nodes[0]
    names = engine_names()
    if not names:
        yield broken("engine", "no engine is installed: reinstall llmhostd with its dependencies.")
    for name in names:
        try:
            found = find_engine(name)(msgspec.structs.replace(node, engine=name)).facts()
        except (LlmhostdError, ImportError, RuntimeError) as error:
            yield broken("engine", f"{name} cannot be opened: {error}")
            continue
        yield good("engine", describe(found))
        for caveat in found.caveats:
            yield slow("engine", f"{caveat}.")


def describe(facts: EngineFacts) -> str:
    """One sentence."""
    precisions, features = ", then ".join(facts.compute), ", ".join(facts.features) or "no vector extensions"
    return f"{facts.name} {facts.version} computes {precisions}, with {features}."
