"""Every command helps whoever asks it, and asking is cheap."""

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from typed_commands import COMMAND, llmhostd

from llmhostd import __version__
from llmhostd.cli.root import COMMANDS, root
from llmhostd.config import CONFIG_FILES


def every_command(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from every_command(command, (*path, name))


ALL = dict(every_command(root, ()))


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_has_help_and_an_example_that_names_it(path: tuple[str, ...]) -> None:
    command = ALL[path]
    assert command.help
    examples = [line for line in (command.epilog or "").splitlines() if line.strip().startswith("llmhostd")]
    assert any(" ".join(path) in line for line in examples)


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_option_says_what_it_does(path: tuple[str, ...]) -> None:
    silent = [one.name for one in ALL[path].params if isinstance(one, click.Option) and not one.help]
    assert silent == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_what_the_command_says(name: str) -> None:
    assert ALL[(name,)].get_short_help_str(200).rstrip(".") == COMMANDS[name][1].rstrip(".")


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from llmhostd.cli import run\n"
        "run(['--help'])\n"
        "heavy = {'numpy', 'httpx', 'openvino', 'litestar', 'rich', 'textual', 'msgspec', 'sqlite_utils'}\n"
        "print('imported:', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "imported: []"
    assert all(name in done.stdout for name in COMMANDS)


def test_version() -> None:
    assert llmhostd("--version").stdout == f"llmhostd {__version__}\n"


def test_completion_knows_the_commands() -> None:
    asked = {"_LLMHOSTD_COMPLETE": "bash_complete", "COMP_WORDS": "llmhostd mod", "COMP_CWORD": "1"}
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False, env=asked)
    assert done.stdout.splitlines() == ["plain,models"]


def test_where_settings_are_looked_for_is_said() -> None:
    option = next(one for one in root.params if isinstance(one, click.Option) and one.name == "config")
    assert option.help
    assert option.help.index(str(CONFIG_FILES[0])) < option.help.index(str(CONFIG_FILES[1]))
