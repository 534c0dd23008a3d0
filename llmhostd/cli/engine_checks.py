"""Which engines are installed, and what do those in use say of this machine?"""

from collections.abc import Iterator, Sequence

from llmhostd.cli.checks import Finding, broken, good, slow
from llmhostd.domain.errors import LlmhostdError
from llmhostd.domain.hardware import NodeSpec
from llmhostd.engines.discovery import engine_names, find_engine
from llmhostd.engines.interface import EngineFacts


def check_engines(nodes: Sequence[NodeSpec]) -> Iterator[Finding]:
    """Version and precisions of each engine that a node uses, its caveats one by one; the others' names."""
    names = engine_names()
    if not names:
        yield broken("engine", "no engine is installed: reinstall llmhostd with its dependencies.")
    used = {node.engine: node for node in reversed(nodes)}
    for name, node in sorted(used.items()):
        try:
            found = find_engine(name)(node).facts()
        except (LlmhostdError, ImportError, RuntimeError) as error:
            yield broken("engine", f"{name} cannot be opened: {error}")
            continue
        yield good("engine", describe(found))
        for caveat in found.caveats:
            yield slow("engine", f"{caveat}.")
    if others := [name for name in names if name not in used]:
        yield good("engine", f"installed and used by no node: {', '.join(others)}.")


def describe(facts: EngineFacts) -> str:
    """One sentence."""
    precisions, features = ", then ".join(facts.compute), ", ".join(facts.features) or "no vector extensions"
    return f"{facts.name} {facts.version} computes {precisions}, with {features}."
