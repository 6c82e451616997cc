"""The command that lists schemes, their options and what they are compatible with."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from sdfeel.cli.common import (
    AsJson,
    print_json,
    results,
)
from sdfeel.core.scheme import defaults, meanings
from sdfeel.core.tolerance import OPTIONS
from sdfeel.schemes import NAMED, SCHEMES, find
from sdfeel.schemes.compatibility import TITLES, reasons, rows

FACTS = {
    "server_links": "servers linked",
    "cloud_links": "cloud",
    "latency": "latency",
    "any_topology": "any graph",
    "cell_edge": "cell edge",
    "proof": "non-IID proof",
}


def schemes(
    compatibility: Annotated[
        bool, typer.Option("--compatibility", help="Show which options go with which scheme.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the schemes and their options.

    Examples:

      sdfeel schemes

      sdfeel schemes --compatibility

      sdfeel schemes --json
    """
    if compatibility:
        _compatibility(as_json)
        return
    every = {**SCHEMES, **{name: find(name) for name in NAMED.added()}}
    found = [_scheme_card(name, kind) for name, kind in every.items()]
    if as_json:
        print_json(found)
        return
    table = Table("scheme", "option", "default", "meaning", box=None, pad_edge=False)
    for card in found:
        table.add_row(f"[bold]{card['name']}", "", "", card["about"])
        for option in card["options"]:
            default = "none" if option["default"] is None else str(option["default"])
            table.add_row("", f"scheme.{option['name']}", default, option["meaning"], style="dim")
    results.print(table)
    results.print(_facts_table(found))


def _compatibility(as_json: bool) -> None:
    """Which schemes use, ignore or refuse which options."""
    if as_json:
        print_json({name: row.verdicts for row in rows() for name in row.schemes})
        return
    letters = dict(zip(OPTIONS, "abcdefghijklmnopqrstuvwxyz", strict=False))
    table = Table("scheme", *letters.values(), box=None, pad_edge=False)
    for row in rows():
        marks = ("-" if cell == "ignored" else cell for cell in row.cells)
        table.add_row("\n".join(row.schemes), *marks)
    results.print(table)
    results.print("yes: used; -: makes no difference; no: refused\n")
    for option, letter in letters.items():
        keys = OPTIONS[option].keys
        results.print(f"{letter}  {TITLES[option]}: {keys}", highlight=False, soft_wrap=True)
    for who, option, why in reasons():
        results.print(f"no: {who}, {option}: {why}", highlight=False, soft_wrap=True)


def _facts_table(cards: list[dict[str, Any]]) -> Table:
    """The paper's Table I, from the schemes' own facts."""
    table = Table("scheme", *FACTS.values(), box=box.SIMPLE_HEAD, pad_edge=False)
    for card in cards:
        words = {True: "yes", False: "no"}
        table.add_row(card["name"], *(words.get(v, str(v)) for v in card["facts"].values()))
    return table


def _scheme_card(name: str, kind: Any) -> dict[str, Any]:
    return {
        "name": name,
        "about": (kind.__doc__ or "").split("\n")[0],
        "facts": dataclasses.asdict(kind.facts),
        "options": [
            {
                "name": name,
                "default": default,
                "meaning": meanings(kind)[name],
            }
            for name, default in defaults(kind).items()
        ],
    }
