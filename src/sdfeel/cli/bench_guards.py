"""What guards against liars and curious servers cost: two commands of `sdfeel bench`."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from sdfeel.cli.common import AsJson, Settings, people, print_json, results
from sdfeel.cli.lazy import later

with later():
    from sdfeel.bench import guards as guarded


def masks(
    clients: Annotated[
        str, typer.Option(metavar="COUNT,...", help="Clients whose updates are added.")
    ] = "10,100,1000",
    numbers: Annotated[
        int, typer.Option(min=1, help="Numbers in an update (21,840: the MNIST CNN).")
    ] = 21_840,
    as_json: AsJson = False,
) -> None:
    """Measure what secure aggregation costs a client and its server in one sum, in CPU time.

    A tenth of the clients die before they have sent their numbers. That is the worst case for the
    server, which must then work out every mask that a dead client shared with another one.

    Examples:

      sdfeel bench masks

      sdfeel bench masks --clients 20 --numbers 1000000 --json
    """
    counts = [int(word) for word in clients.split(",") if word.strip().isdecimal()]
    found = [guarded.sum_cost(n, numbers, n // 10) for n in counts if n > 1]
    if as_json:
        print_json([dataclasses.asdict(each) for each in found])
        return
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    names = ("clients", "dead", "client", "server", "nobody dead", "numbers", "masks, each client")
    for name in names:
        table.add_column(name, justify="right")
    for each in found:
        table.add_row(
            *(f"{each.clients:,}", f"{each.dead:,}"),
            *(f"{each.client_ms:,.1f} ms", f"{each.server_ms:,.1f} ms"),
            f"{each.nobody_dead_ms:,.1f} ms",
            *(f"{each.plain_bytes:,} B", f"+ {each.mask_bytes:,} B"),
        )
    results.print(table)


def guards(
    attacks: Annotated[
        bool,
        typer.Option("--attacks", help="Try every attack against every rule, without timing."),
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="With --attacks: runs of each pair.")] = 1,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Show what rules, noise and masks cost in accuracy, bytes and time, and what they withstand.

    50 clients in 5 clusters, 100 iterations; with --attacks ten of them lie, two in each cluster.

    Examples:

      sdfeel bench guards --set data.name=mnist

      sdfeel bench guards --attacks --seeds 3 --set data.name=mnist

      sdfeel bench guards --attacks --set training.iterations=50 --json
    """
    keys = tuple(settings or ())
    rows = guarded.attacks(keys, seeds) if attacks else guarded.costs(keys)
    found = []
    for each in rows:
        found.append(each)
        people.print(f"{each.attack}, {each.guard}: {_share(each.accuracy)}")
    if as_json:
        print_json([dataclasses.asdict(each) for each in found])
    else:
        results.print(_attack_table(found) if attacks else _guard_table(found))


def _share(value: float | None) -> str:
    return "diverged" if value is None else f"{100 * value:.1f} %"


def _guard_table(found: list[guarded.GuardTrial]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("guard", "accuracy", "bytes a round", "CPU time", "epsilon"):
        table.add_column(name, justify="left" if name == "guard" else "right")
    for each in found:
        epsilon = "-" if each.epsilon is None else f"{each.epsilon:.1f}"
        time = f"{each.seconds / found[0].seconds:.2f}"
        bytes_ = f"{each.round_bytes:,.0f}"
        table.add_row(each.guard, _share(each.accuracy), bytes_, time, epsilon)
    return table


def _attack_table(found: list[guarded.GuardTrial]) -> Table:
    names = list(dict.fromkeys(each.guard for each in found))
    table = Table("attack", *names, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for attack in dict.fromkeys(each.attack for each in found):
        cells = ([t for t in found if (t.attack, t.guard) == (attack, name)] for name in names)
        table.add_row(attack, *(_cell(trials) for trials in cells))
    return table


def _cell(trials: list[guarded.GuardTrial]) -> str:
    """The accuracy, then a backdoor's success, and how many runs diverged."""
    ended = [each.accuracy for each in trials if each.accuracy is not None]
    doors = [each.backdoor for each in trials if each.backdoor is not None]
    lost = len(trials) - len(ended)
    if not ended:
        return _share(None)
    said = _spread(ended, 1) + (f"; {_spread(doors, 0)}" if doors else "")
    return f"{said}, {lost} of {len(trials)} diverged" if lost else said


def _spread(values: list[float], digits: int) -> str:
    """The mean of several runs, and the lowest and the highest."""
    mean, low, high = (100 * x for x in (sum(values) / len(values), min(values), max(values)))
    said = f"{mean:.{digits}f} %"
    return said if len(values) == 1 else f"{said} ({low:.{digits}f} to {high:.{digits}f})"
