"""Which commands are there, and what may stand before each?"""

from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

import click

from llmhostd import __version__

COMMANDS = {
    "serve": ("serve:serve", "Run the daemon."),
    "top": ("top:top", "Watch nodes, instances and requests on a terminal."),
    "models": ("models:models", "Add, list, pull and remove models."),
    "run": ("run:run", "Ask a model and stream its answer to the terminal."),
    "ps": ("ps:ps", "Show what every node, instance and request is doing now."),
    "usage": ("usage:usage", "Show how much each model was used."),
    "drain": ("drain:drain", "Let a node run empty, or use it again."),
    "move": ("move:move", "Let what runs go on on another node, without a gap."),
    "profile": ("profile:profile", "Measure how long iterations take, or verify the predictions."),
    "bench": ("bench:bench", "Put any OpenAI-compatible server under open-loop load."),
    "simulate": ("simulate:simulate", "Replay a trace through the same decisions without hardware."),
    "plan": ("plan:plan", "Say who would meet their SLO, what breaks first, and what more of anything would buy."),
    "evaluate": ("evaluate:evaluate", "Repeat the evaluation of SLINFER and draw it beside what was published."),
    "evaluate-starts": (
        "evaluate_starts:evaluate_starts",
        "Repeat ServerlessLLM's comparison of start-up latencies beside what was published.",
    ),
    "replay": ("replay:replay", "Decide the journal's events again, and show what differs."),
    "doctor": ("doctor:doctor", "Look for what is broken or slow here, and say why."),
    "demo-models": ("demo:demo_models", "Make small models of several families, without a download."),
}
"""Name: where it is, below this package, and its help's first sentence (a test holds them together)."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which daemon and which state a command is about."""

    config: Path | None
    state_dir: Path | None
    url: str | None
    key: str | None = None
    """What `--url` is opened with."""


class LazyGroup(click.Group):
    """Imports a command's module when it is typed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            near = get_close_matches(cmd_name, COMMANDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(COMMANDS)}"
            ctx.fail(f"there is no command {cmd_name!r}; {hint}")
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(f"llmhostd.cli.{module}"), name)
        assert isinstance(command, click.Command)  # noqa: S101 - the table above is ours
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in COMMANDS.items()])


def example(*lines: str) -> str:
    """A command's closing help: examples, kept line by line."""
    return "\b\nExamples:\n" + "\n".join(f"  llmhostd {line}" for line in lines)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="\b\nCompletion, for bash (zsh and fish likewise), in ~/.bashrc:\n"
    '  eval "$(_LLMHOSTD_COMPLETE=bash_source llmhostd)"',
)
@click.version_option(__version__, package_name="llmhostd", message="%(prog)s %(version)s")
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Settings (TOML), instead of /etc/llmhostd/llmhostd.toml or ~/.config/llmhostd/llmhostd.toml.",
)
@click.option(
    "--state-dir", type=click.Path(file_okay=False, path_type=Path), help="Where models, profiles and the socket live."
)
@click.option("--url", help="A daemon elsewhere, instead of the one on the state directory's socket.")
@click.option(
    "--key", envvar=["LLMHOSTD_API_KEY", "OPENAI_API_KEY"], show_envvar=True, metavar="KEY",
    help="API key for --url; the state directory's socket needs none.",
)  # fmt: skip
@click.pass_context
def root(ctx: click.Context, config: Path | None, state_dir: Path | None, url: str | None, key: str | None) -> None:
    """Host many language models on one box: every request within its SLO, or refused at once."""
    ctx.obj = Place(config=config, state_dir=state_dir, url=url, key=key)
