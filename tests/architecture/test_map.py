"""Does ARCHITECTURE.md say what is really there?

The blocks between `<!-- NAME -->` and `<!-- /NAME -->` are made from the code. After adding a module, run
`pytest tests/architecture --rewrite`, and review the diff.
"""

import itertools
import re
import tomllib

import pytest
from tree import ROOT, Module, modules

import llmhostd
from llmhostd.host.instance import MOVES
from llmhostd.migration.live_migration import TRANSITIONS as MIGRATIONS
from llmhostd.node.states import TRANSITIONS

MAP = ROOT / "ARCHITECTURE.md"


def module_map() -> str:
    lines: list[str] = []
    for package, members in itertools.groupby(sorted(modules(), key=_place), key=lambda module: module.package):
        named = list(members)
        head = next(module for module in named if module.path.name == "__init__.py")
        rest = [f"| `{module.path.stem}` | {_cell(module.question)} |" for module in named if module is not head]
        lines += [f"**`{package}/`** {head.question}", ""]
        lines += ["| module | |", "| --- | --- |", *rest, ""] if rest else []
    return "\n".join(lines).rstrip()


def node_states() -> str:
    rows = [f"| {phase} | {trigger} | {after} |" for (phase, trigger), after in TRANSITIONS.items()]
    return "\n".join(["| phase | when | becomes |", "| --- | --- | --- |", *rows])


def host_states() -> str:
    rows = [f"| {state} | {', '.join(after)} |" for state, after in MOVES.items()]
    return "\n".join(["| state | may become |", "| --- | --- |", *rows])


def migration_states() -> str:
    rows = [f"| {phase} | {trigger} | {after} |" for (phase, trigger), after in MIGRATIONS.items()]
    return "\n".join(["| phase | when | becomes |", "| --- | --- | --- |", *rows])


MADE = {
    "modules": module_map,
    "node states": node_states,
    "host states": host_states,
    "migration states": migration_states,
}


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_from_the_code_is_up_to_date(name: str, pytestconfig: pytest.Config) -> None:
    made = MADE[name]()
    before, written, after = re.split(
        rf"(?<=<!-- {name} -->)\n(.*?)(?=<!-- /{name} -->)", MAP.read_text("utf-8"), flags=re.DOTALL
    )
    if pytestconfig.getoption("--rewrite"):
        MAP.write_text(f"{before}\n{made}\n{after}", encoding="utf-8")
        return
    stale, missing = _only_in(written, made), _only_in(made, written)
    assert not missing, f"ARCHITECTURE.md lacks (pytest tests/architecture --rewrite writes them): {missing}"
    assert not stale, f"ARCHITECTURE.md speaks of what is gone: {stale}"
    assert written == f"{made}\n"


def test_the_layers_are_those_that_are_enforced() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["type"] == "layers")
    enforced = [set(re.findall(r"llmhostd\.(\w+)", layer)) for layer in layers]
    for text in (MAP.read_text("utf-8").split("## Layers")[1].split("```")[1], llmhostd.__doc__ or ""):
        drawn = [set(re.findall(r"\w+", line[:53].split("  ")[0])) for line in map(str.strip, text.splitlines())]
        assert [layer for layer in drawn if layer in enforced] == enforced


@pytest.mark.parametrize("document", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_path_that_a_document_names_exists(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w.-]+(?:/[\w.*-]+)+/?)`", text)) | set(re.findall(r"\]\((?!http)([^)#]+)\)", text))
    gone = [
        path
        for path in sorted(named)
        if not any(_exists(path) for path in (path, f"llmhostd/{path}", f"{path}.py", f"llmhostd/{path}.py"))
    ]
    assert not gone


def _exists(path: str) -> bool:
    return next(iter(ROOT.glob(path.rstrip("/"))), None) is not None


def _only_in(one: str, other: str) -> list[str]:
    known = set(other.splitlines())
    return [line for line in one.splitlines() if line not in known]


def _place(module: Module) -> tuple[str, bool, str]:
    return module.package, module.path.name != "__init__.py", module.path.name


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
