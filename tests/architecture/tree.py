"""What modules are there, and what does each say of itself? Read from the tree, never imported."""

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "llmhostd": ROOT,
    "llmhostd_openvino": ROOT / "plugins",
    "llmhostd_profiled": ROOT / "plugins",
    "llmhostd_tui": ROOT / "tui",
}
"""Import names, and the directory each is found in."""


@dataclass(frozen=True)
class Module:
    """One Python file of the project."""

    path: Path

    @property
    def name(self) -> str:
        """As in the tree: `llmhostd/host/core.py`."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def package(self) -> str:
        return self.path.parent.relative_to(ROOT).as_posix()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"))

    @property
    def question(self) -> str:
        """The first paragraph of its docstring, on one line."""
        docstring = ast.get_docstring(self.tree) or ""
        return " ".join(docstring.split("\n\n")[0].split())

    @property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def modules() -> list[Module]:
    """All modules of the distribution, in order of path."""
    paths = [path for package, root in PACKAGES.items() for path in (root / package).rglob("*.py")]
    return [Module(path) for path in sorted(paths)]


def files_of_tests() -> list[Module]:
    return [Module(path) for path in sorted((ROOT / "tests").rglob("*.py"))]
