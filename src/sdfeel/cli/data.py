"""Commands to list, fetch and look at data sets."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from sdfeel.cli.common import (
    AsJson,
    ExperimentFile,
    Settings,
    Width,
    print_json,
    results,
    transfer,
)
from sdfeel.cli.lazy import later
from sdfeel.data.partition import unevenness
from sdfeel.report.tables import label_table

with later():
    from sdfeel.data import catalog, download
    from sdfeel.experiment import build_data, build_network, loading
    from sdfeel.report import drawing, holdings


data = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=False,
    add_completion=False,
    rich_markup_mode="markdown",
)
Directory = Annotated[
    Path | None, typer.Option("--directory", "-d", help="Where the files are (default: the cache).")
]
SKEW = {
    "largest_share": "share of the largest class, mean",
    "classes_held": "classes held, mean",
    "distance": "distance from the overall mix of labels (0 to 1), mean",
    "smallest": "fewest examples",
    "largest": "most examples",
}


@data.callback()
def data_list(context: typer.Context, directory: Directory = None, as_json: AsJson = False) -> None:
    """List, fetch and inspect data sets.

    Examples:

      sdfeel data

      sdfeel data get mnist

      sdfeel data show --set data.partition=dirichlet
    """
    if context.invoked_subcommand is not None:
        return
    found = catalog.describe(directory)
    if as_json:
        print_json([{**dataclasses.asdict(card), "found": _text(card.found)} for card in found])
        return
    table = Table("data", "train", "test", "input", "classes", "here", box=None, pad_edge=False)
    for card in found:
        here = "built in" if card.name == "digits" else "yes" if card.found else "no"
        shape = "x".join(map(str, card.shape))
        counts = (f"{card.train:,}", f"{card.test:,}", shape, str(card.classes))
        table.add_row(f"[bold]{card.name}", *counts, here)
    results.print(table)
    for card in found:
        if card.found is None:
            results.print(f"to fetch it: sdfeel data get {card.name}", soft_wrap=True)
        elif card.name != "digits":
            results.print(f"{card.name}: {escape(str(card.found))}", soft_wrap=True)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


@data.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist or cifar10.")],
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a data set and verify it.

    Examples:

      sdfeel data get mnist

      sdfeel data get cifar10 --directory ~/data
    """
    where = directory if directory is not None else catalog.default_directory()
    with transfer() as report:
        path = download.get(name, where, report)
    if as_json:
        print_json({"name": name, "path": str(path)})
    else:
        results.print(f"{name} is here: {escape(str(path))}", soft_wrap=True)


@data.command("show")
def data_show(
    experiment: ExperimentFile = None,
    settings: Settings = None,
    picture: Annotated[
        Path | None, typer.Option(help="Where to draw it (.pdf, .svg, .png).")
    ] = None,
    width: Width = None,
    as_json: AsJson = False,
) -> None:
    """Show who holds which data, by client and by cluster, and how uneven it is.

    Examples:

      sdfeel data show

      sdfeel data show --set data.partition=dirichlet --set data.concentration=0.1

      sdfeel data show my.toml --picture who.png --json
    """
    chosen = loading.load(experiment, settings or ())
    split = build_data.build_data(chosen)
    net = build_network.build_network(chosen, split)
    counts = build_network.who_holds_what(split)
    drawn = picture if picture is not None else Path("holdings.png")
    drawing.save(holdings.holdings(counts, net.home, width), drawn, width)
    skew = dataclasses.asdict(unevenness(counts, net.home))
    if as_json:
        print_json(
            {
                "clients": counts.tolist(),
                "home": net.home.tolist(),
                "skew": skew,
                "picture": str(drawn),
            }
        )
        return
    rows = [(text, skew["clients"][key], skew["clusters"][key]) for key, text in SKEW.items()]
    results.print(label_table(rows))
    results.print(f"picture: {escape(str(drawn))}", soft_wrap=True)
