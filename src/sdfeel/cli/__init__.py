"""The command line: thin functions over the packages below."""

import os
import sys

import typer

from sdfeel.cli import common, inspect, runs
from sdfeel.cli.bench import bench
from sdfeel.cli.dash import dash
from sdfeel.cli.deploy import client, deploy, edge
from sdfeel.cli.figure import figure
from sdfeel.cli.plan import plan
from sdfeel.cli.sweep import sweep
from sdfeel.cli.timeline import timeline
from sdfeel.core.errors import SdfeelError
from sdfeel.version import __version__

app = typer.Typer(
    name="sdfeel",
    help="Semi-decentralized federated edge learning: simulate, compare, understand.\n\n"
    "Start with: sdfeel compare",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(runs.compare)
app.command()(sweep)
app.command()(plan)
app.command()(runs.run)
app.command()(runs.resume)
app.command()(runs.show)
app.command()(timeline)
app.command()(inspect.init)
app.command()(inspect.schemes)
app.command()(inspect.topology)
app.add_typer(inspect.data, name="data")
app.add_typer(bench, name="bench")
app.add_typer(deploy, name="deploy")
app.command()(edge)
app.command()(client)
app.command()(dash)
app.command()(figure)

EXTRAS = {"grpc": "deploy", "cryptography": "deploy"}  # a missing package, and what brings it


def _version(wanted: bool) -> None:
    if wanted:
        print(f"sdfeel {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """Semi-decentralized federated edge learning: simulate, compare, understand."""


def main() -> None:
    """Run a command; a mistake is told in one sentence."""
    if "--json" in sys.argv:
        common.reserve_stdout()
    try:
        app()
    except SdfeelError as error:
        sys.exit(f"sdfeel: {error}")
    except BrokenPipeError:
        # The reader (head, less) has gone; Python must not complain again while closing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        sys.exit(
            f"sdfeel: {error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        )
    except KeyboardInterrupt:
        sys.exit(130)
    except MemoryError:
        sys.exit("sdfeel: there is not enough memory for this: ask for less")
    except Exception as error:
        missing = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
        if extra := EXTRAS.get(missing.split(".")[0]):
            sys.exit(
                f"sdfeel: this needs {missing}: install it with `pip install 'sdfeel[{extra}]'`"
            )
        if os.environ.get("SDFEEL_TRACEBACK"):
            raise
        sys.exit(
            f"sdfeel: a mistake of ours: {type(error).__name__}: {error} "
            f"(SDFEEL_TRACEBACK=1 shows where; please report it)"
        )
