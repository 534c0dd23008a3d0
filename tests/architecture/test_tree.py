"""Is every module short, and does each say what it is for?"""

import pytest
from tree import Module, files_of_tests, modules

MOST_LINES = 400
MOST_FUNCTION_LINES = 60
LEAST_WORDS = 3

EVERY = [*modules(), *files_of_tests()]


@pytest.mark.parametrize("module", EVERY, ids=lambda module: module.name)
def test_module_and_its_functions_are_short(module: Module) -> None:
    lines = module.path.read_text(encoding="utf-8").count("\n")
    assert lines <= MOST_LINES, f"{module.name} has {lines} lines: which question could be asked elsewhere?"
    lengths = {one.name: (one.end_lineno or one.lineno) - one.lineno + 1 for one in module.functions}
    assert not {name: lines for name, lines in lengths.items() if lines > MOST_FUNCTION_LINES}


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_module_says_what_it_is_for(module: Module) -> None:
    assert len(module.question.split()) >= LEAST_WORDS


def test_every_folder_of_modules_is_a_package() -> None:
    assert not [str(path) for path in {one.path.parent for one in modules()} if not (path / "__init__.py").exists()]
