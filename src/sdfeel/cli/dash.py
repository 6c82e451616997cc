"""The command that serves the live page."""

from __future__ import annotations

import os
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from sdfeel.cli.common import people, results
from sdfeel.cli.lazy import later

with later():
    from sdfeel.dashboard import serve as dashboard

TOKEN = "SDFEEL_DASH_TOKEN"


def dash(
    directory: Annotated[Path, typer.Argument(help="The directory with the runs.")] = Path("runs"),
    host: Annotated[
        str, typer.Option(help=f"Address to listen on; any but loopback needs a token (${TOKEN}).")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on (0: any free one).")
    ] = 0,
    allow_start: Annotated[
        bool, typer.Option("--allow-start", help="Let the page start and stop runs.")
    ] = False,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Watch runs in a browser, live: curves, the server graph over time, who waits for whom.

    Shows every run below the directory; nothing outside it is ever served.

    Examples:

      sdfeel dash

      sdfeel dash runs/race --port 8080 --no-browser

      sdfeel dash --allow-start
    """

    def ready(address: str) -> None:
        results.print(escape(address), soft_wrap=True)
        people.print("press Ctrl-C to stop it" + (" and the runs started from it" * allow_start))
        if browser:
            webbrowser.open(address)

    dashboard.serve(
        dashboard.ServeOptions(directory, host, port, allow_start, os.environ.get(TOKEN) or None),
        ready,
    )
