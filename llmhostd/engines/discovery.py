"""Which engine plugin is called that?"""

import importlib.metadata
from collections.abc import Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING

from llmhostd.domain.errors import OperatorError
from llmhostd.domain.hardware import NodeKind, NodeSpec
from llmhostd.domain.model import ModelShape
from llmhostd.domain.profile import Profile

if TYPE_CHECKING:  # the daemon asks for precisions only, and spares itself numpy
    from llmhostd.engines.interface import Engine, Precisions

GROUP = "llmhostd.engines"
"""The entry-point group; see `engines.interface.EnginePlugin`."""

OpenEngine = Callable[[NodeSpec], "Engine"]


def engine_names() -> tuple[str, ...]:
    """Names of all installed engines, sorted."""
    return tuple(sorted(importlib.metadata.entry_points(group=GROUP).names))


def find_engine(name: str) -> OpenEngine:
    """Import an engine plugin. Raises OperatorError if there is none of that name or it cannot be imported."""
    entries = importlib.metadata.entry_points(group=GROUP, name=name)
    if not entries:
        known = engine_names()
        near = get_close_matches(name, known, n=1, cutoff=0.0)
        hint = f"the nearest installed is '{near[0]}'" if near else "none is installed"
        raise OperatorError(f"no engine is called '{name}'; {hint}")
    entry = next(iter(entries))
    try:
        found: OpenEngine = entry.load()
    except (ImportError, AttributeError) as error:
        raise OperatorError(f"engine '{name}' ({entry.value}) cannot be imported: {error}") from error
    return found


def open_engine(node: NodeSpec) -> "Engine":
    """Find a node's engine and open it. Raises OperatorError, too, if what the engine itself imports is missing."""
    found = find_engine(node.engine)
    try:
        return found(node)
    except ImportError as error:
        raise OperatorError(f"engine '{node.engine}' cannot be opened: {error}") from error


def precisions_of(node: NodeSpec) -> "Precisions | None":
    """Ask what a node's engine can compute, without opening it; None if it says so at the load only."""
    ask: Callable[[NodeSpec], Precisions] | None = getattr(find_engine(node.engine), "precisions", None)
    return ask(node) if ask else None


def kinds_of(name: str) -> tuple[NodeKind, ...]:
    """Say which kinds of devices an engine drives. Raises OperatorError as `find_engine`."""
    kinds: tuple[NodeKind, ...] = getattr(find_engine(name), "kinds", (NodeKind.CPU,))
    return kinds


def computes_adapters(name: str) -> bool:
    """Say whether an engine computes low-rank adapters. Raises OperatorError as `find_engine`."""
    does: bool = getattr(find_engine(name), "adapters", False)
    return does


def check_node(node: NodeSpec) -> None:
    """Raise OperatorError, naming a setting of the node where one is wrong, if its engine could never be this node."""
    check: Callable[[NodeSpec], None] | None = getattr(find_engine(node.engine), "check", None)
    if check:
        check(node)


def known_profile(node: NodeSpec, shape: ModelShape) -> Profile | None:
    """Ask a node's engine how long iterations take, where it knows without measuring. Raises OperatorError."""
    ask: Callable[[NodeSpec, ModelShape], Profile | None] | None = getattr(find_engine(node.engine), "profile", None)
    return ask(node, shape) if ask else None
