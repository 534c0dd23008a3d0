"""What may a person type?

`root` has the global options and the table of commands; each command's module is imported when it is typed, so that
`llmhostd --help` costs nothing. `main` turns errors into one line and an exit status.
"""

import os
import sys
from collections.abc import Sequence

import click

from llmhostd.cli.root import root
from llmhostd.domain.errors import CallerError, LlmhostdError


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 something failed, 2 wrong usage, 130 interrupted."""
    sys.exit(run(args))


def run(args: Sequence[str] | None) -> int:
    """Run the command line; returns the exit status. No traceback unless LLMHOSTD_DEBUG is set."""
    try:
        status = root.main(args, prog_name="llmhostd", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("", err=True)
        return 130
    except BrokenPipeError:
        # Whoever read our output (`| head`) has enough; Python must not flush into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("LLMHOSTD_DEBUG"):
            raise
        return _say(error)
    return status if isinstance(status, int) else 0


def _say(error: Exception) -> int:
    if isinstance(error, LlmhostdError):
        click.echo(f"llmhostd: {error}", err=True)
        return 2 if isinstance(error, CallerError) else 1
    if isinstance(error, OSError) and error.strerror:
        click.echo(f"llmhostd: {error.filename or 'this system'}: {error.strerror}", err=True)
        return 1
    if type(error).__module__ == "sqlite3":
        click.echo(f"llmhostd: the state's database: {error}", err=True)
        return 1
    click.echo(
        f"llmhostd: internal error, please report it: {type(error).__name__}: {error} (LLMHOSTD_DEBUG=1 shows where)",
        err=True,
    )
    return 1
