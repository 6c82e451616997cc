"""The command line: thin functions over the packages below."""

import os
import sys
from contextlib import nullcontext, suppress
from io import TextIOWrapper

import typer

from sdfeel.cli import common
from sdfeel.cli.lazy import Home, announce, lazy
from sdfeel.core.errors import SdfeelError, told
from sdfeel.version import __version__

COMMANDS = {
    "compare": Home(
        "sdfeel.cli.runs", "Compare schemes on the same data, seed and latency model. Start here."
    ),
    "sweep": Home(
        "sdfeel.cli.runs", "Run every combination of values on all cores, and average over seeds."
    ),
    "plan": Home(
        "sdfeel.cli.plan",
        "Choose a scheme, its periods, mixing and learning rate for your links and devices.",
    ),
    "run": Home("sdfeel.cli.runs", "Run one experiment."),
    "resume": Home(
        "sdfeel.cli.runs",
        "Continue a run that was stopped or killed; it ends as if nothing had happened.",
    ),
    "rerun": Home(
        "sdfeel.cli.runs",
        "Repeat a run from its own record, and say whether the model is the same.",
    ),
    "show": Home(
        "sdfeel.cli.show",
        "Show one run, or several side by side, from their logs: table, picture and page.",
    ),
    "timeline": Home(
        "sdfeel.cli.show",
        "Draw who computed, waited, uploaded and gossiped when, from a run's log.",
    ),
    "export": Home(
        "sdfeel.cli.export",
        "Write tables for a paper: means with intervals, paired differences, costs to the target.",
    ),
    "track": Home("sdfeel.cli.export", "Send runs to an experiment tracker, from their logs."),
    "init": Home(
        "sdfeel.cli.inspect", "Write a commented experiment file with every key and its default."
    ),
    "schemes": Home("sdfeel.cli.schemes", "List the schemes and their options."),
    "topology": Home(
        "sdfeel.cli.inspect",
        "Show a server graph: its links, its mixing weights, and how fast servers agree (zeta).",
    ),
    "privacy": Home(
        "sdfeel.cli.inspect",
        "Show how much each kind of observer can learn about clients in an experiment.",
    ),
    "edge": Home(
        "sdfeel.cli.deploy",
        "Run one edge server until the federation is done (see `sdfeel deploy init`).",
    ),
    "client": Home(
        "sdfeel.cli.deploy", "Run one client on its own data until the federation is done."
    ),
    "fidelity": Home(
        "sdfeel.cli.fidelity",
        "Compare deployed runs with simulations of the same experiments, in seconds per round.",
    ),
    "dash": Home(
        "sdfeel.cli.show",
        "Watch runs in a browser, live: curves, the server graph over time, who waits for whom.",
    ),
    "figure": Home(
        "sdfeel.cli.figure",
        "Check the paper's claims: draw a figure from its kept curves, and judge each claim.",
    ),
    "data": Home("sdfeel.cli.data", "List, fetch and inspect data sets."),
    "bench": Home(
        "sdfeel.cli.bench",
        "Time the engines against plain torch code and the machine's limit, interleaved.",
    ),
    "deploy": Home(
        "sdfeel.cli.deploy",
        "Run an experiment as real processes: on this machine, or on a list of hosts.",
    ),
}

app = typer.Typer(
    cls=lazy(COMMANDS),
    name="sdfeel",
    help="Semi-decentralized federated edge learning: simulate, compare, understand.\n\n"
    "Start with: sdfeel compare",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
announce(app, COMMANDS)

# A missing package, and the extra that installs it.
EXTRAS = {
    "dp_accounting": "privacy",
    "grpc": "deploy",
    "cryptography": "deploy",
    "starlette": "dash",
    "uvicorn": "dash",
}


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
    """Run a command; report a mistake in one sentence, with --json as a document, too."""
    as_json = "--json" in sys.argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal's encoding may lack some of our letters
            stream.reconfigure(errors="replace")
    try:
        _run(as_json)
    except SystemExit as end:
        if as_json and end.code:
            with suppress(OSError):  # the reader may have gone
                common.print_failure(_sentence(end.code))
        raise


def _sentence(code: str | int) -> str:
    """Why a command failed, as far as its exit code says it."""
    if isinstance(code, str):
        return code.removeprefix("sdfeel: ")
    why = {2: "the command line is wrong", 130: "it was interrupted"}
    return why.get(code, f"the exit code is {code}") + ": standard error says more"


def _run(as_json: bool) -> None:
    try:
        with common.reserved_stdout() if as_json else nullcontext():
            app()
    except SdfeelError as error:
        if os.environ.get("SDFEEL_TRACEBACK"):
            raise
        sys.exit(f"sdfeel: {error}")
    except BrokenPipeError:
        # The reader (head, less) has gone; Python must not complain again while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        sys.exit(
            f"sdfeel: {error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        )
    except KeyboardInterrupt:
        sys.exit(130)
    except MemoryError:
        sys.exit("sdfeel: not enough memory: try a smaller model, fewer clients or a smaller batch")
    except Exception as error:
        missing = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
        if extra := EXTRAS.get(missing.split(".")[0]):
            sys.exit(
                f"sdfeel: this needs {missing}: install it with `pip install 'sdfeel[{extra}]'`"
            )
        if os.environ.get("SDFEEL_TRACEBACK"):
            raise
        sys.exit(
            f"sdfeel: {told(error)} (SDFEEL_TRACEBACK=1 shows where it comes from; if no file of "
            f"yours is named here, please report it)"
        )
