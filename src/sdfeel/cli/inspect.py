"""Commands to look at things before a run: graphs, data, schemes, the experiment file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from sdfeel.cli.common import (
    AsJson,
    ExperimentFile,
    Settings,
    Width,
    print_json,
    results,
)
from sdfeel.cli.lazy import later
from sdfeel.core.agreement import Agreement, agreement
from sdfeel.core.errors import InputError
from sdfeel.core.gossip_weights import GOSSIP_RULES
from sdfeel.core.named import recorded_name
from sdfeel.core.network import Network
from sdfeel.core.peers import NAMES

if TYPE_CHECKING:
    from sdfeel.experiment.schema import Experiment

with later():
    from sdfeel.core import breakdown_points
    from sdfeel.experiment import build, build_liars, build_network, loading
    from sdfeel.report import drawing
    from sdfeel.report import topology as graphs
    from sdfeel.run import exposure as exposures


Picture = Annotated[Path | None, typer.Option(help="Also draw it, to a .pdf, .svg or .png file.")]


def init(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("experiment.toml"),
    settings: Settings = None,
    force: Annotated[bool, typer.Option(help="Replace an existing file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a commented experiment file with every key and its default.

    Examples:

      sdfeel init

      sdfeel init mnist.toml --set data.name=mnist --set training.learning_rate=0.01
    """
    if file.exists() and not force:
        raise InputError(f"{file} exists already: choose another name, or replace it with --force")
    chosen = loading.load(None, settings or ())
    scheme, _ = build.build_scheme(chosen)
    chosen = chosen.model_copy(update={"scheme": build.scheme_section(chosen.scheme.name, scheme)})
    file.write_text(loading.template(chosen), encoding="utf-8")
    if as_json:
        print_json({"file": str(file), "experiment": chosen.model_dump()})
    else:
        results.print(f"wrote {escape(str(file))}; run it with: sdfeel run {escape(str(file))}")


def topology(
    graph: Annotated[str, typer.Argument(help="A topology's name, or a file.")] = "ring",
    servers: Annotated[int | None, typer.Option(help="Number of edge servers.")] = None,
    settings: Settings = None,
    picture: Picture = None,
    width: Width = None,
    as_json: AsJson = False,
) -> None:
    """Show a server graph: its links, its mixing weights, and how fast servers agree (zeta).

    Clusters are equal in size unless an imbalance is set. A second table compares all mixing rules
    that fit the graph: how many others a server hears in an exchange, how many models are sent, and
    how much of a disagreement is left. The last lines say how many liars the graph and its clusters
    withstand under the rules of the experiment (robust.cluster, robust.servers).

    Examples:

      sdfeel topology ring --servers 6

      sdfeel topology complete --set network.imbalance=2 --picture graph.png

      sdfeel topology complete --set robust.cluster=median --set robust.servers=cs+

      sdfeel topology my.graphml --servers 8 --set network.mixing=metropolis --json
    """
    more = [f"network.graph={graph}"]
    if servers is not None:
        more += [f"network.servers={servers}", f"network.clients={max(servers, 1) * 5}"]
    chosen = build_network.with_servers(loading.load(None, [*more, *(settings or ())]))
    net = build_network.equal_network(chosen)
    if picture is not None:
        drawing.save(graphs.topology(net, width), picture, width)
    if as_json:
        print_json(
            {
                "graph": graph,
                "servers": len(net.servers),
                "zeta": net.zeta,
                "edges": net.edges,
                "shares": net.mass.tolist(),
                "weights": net.mixing.tolist(),
                "agreement": [
                    _agreement_record(name, each) for name, each in _agreements(net, chosen)
                ],
                "liars": _liars(net, chosen),
                "picture": str(picture) if picture is not None else None,
            }
        )
        return
    results.print(_topology_table(net))
    results.print(
        f"{len(net.edges)} links, zeta {net.zeta:.4f} (0: servers agree at once, 1: never)"
    )
    if len(net.servers) > 1:
        results.print(
            "\nhow fast servers agree with each network.mixing that fits: the share of their "
            "disagreement (root mean square) that is left after so many exchanges",
            soft_wrap=True,
        )
        results.print(_agreement_table(_agreements(net, chosen)))
        results.print()
    for line in _liars_in_words(_liars(net, chosen)):
        results.print(line, soft_wrap=True)
    if picture is not None:
        results.print(f"picture: {escape(str(picture))}", soft_wrap=True)


def privacy(
    experiment: ExperimentFile = None, settings: Settings = None, as_json: AsJson = False
) -> None:
    """Show how much each kind of observer can learn about clients in an experiment.

    Examples:

      sdfeel privacy --set privacy.protects=clients --set privacy.noise=5

      sdfeel privacy my.toml --json
    """
    ready = build.prepare(loading.load(experiment, settings or ()))
    found = exposures.exposure(ready)
    assert ready.budget is not None  # or it was refused
    delta = ready.budget.delta
    told = [(each.who, *each.epsilons(delta)) for each in found]
    ready.engine.close()
    if as_json:
        lines = [{"who": who, "median": a, "worst": b} for who, a, b in told]
        print_json({"delta": delta, "statement": ready.budget.statement, "epsilon": lines})
        return
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 2, 0, 0))
    table.add_column(f"who learns about {ready.budget.protects}")
    table.add_column("median epsilon", justify="right")
    table.add_column("worst epsilon", justify="right")
    for who, middle, worst in told:
        table.add_row(who, f"{middle:.4g}", f"{worst:.4g}")
    results.print(table)
    results.print(ready.budget.statement)


NEARLY = 1e-3  # of a disagreement is left when servers nearly agree


def _agreements(net: Network, experiment: Experiment) -> list[tuple[str, Agreement]]:
    """How fast the servers of a graph agree: by the chosen rule, then by the others that fit."""
    own, found = experiment.network.mixing, []
    for name in dict.fromkeys((recorded_name(own), *GOSSIP_RULES, *NAMES)):
        given = own if name == recorded_name(own) else name
        section = experiment.network.model_copy(update={"mixing": given})
        with suppress(InputError):  # the rule needs links that this graph does not have
            fitting = build_network.build_mixing(
                experiment.model_copy(update={"network": section}), net
            )
            found.append((name, agreement(fitting)))
    return found


def _agreement_record(name: str, found: Agreement) -> dict[str, Any]:
    nearly = found.until(NEARLY)
    return {
        "mixing": name,
        "degree": found.degree,
        "messages": found.messages,
        "exact_after": found.exact,
        "left": list(found.left[:10]),
        "exchanges": None if nearly is None else nearly[0],
        "messages_in_all": None if nearly is None else nearly[1],
    }


def _liars(net: Network, chosen: Experiment) -> dict[str, Any]:
    """How many liars a network withstands under its rules."""
    cluster, servers = build_liars.build_rules(chosen)
    found = breakdown_points.breakdown(net, cluster, servers)
    return {
        "cluster_rule": recorded_name(chosen.robust.cluster),
        "server_rule": recorded_name(chosen.robust.servers),
        "each_cluster": list(found.clusters),
        "servers": found.servers,
        "hopeless_servers": found.hopeless,
        "clients": found.clients,
    }


def _liars_in_words(found: dict[str, Any]) -> list[str]:
    if found["cluster_rule"] == found["server_rule"] == "none":
        several = "s" * (found["hopeless_servers"] != 1)
        return [
            f"liars: neither robust.cluster nor robust.servers is set, so a single liar may ruin "
            f"the run; no rule helps against "
            f"{found['hopeless_servers']} lying server{several} in the worst place{several}"
        ]
    each = [count for count in found["each_cluster"] if count is not None]
    low, high = (min(each), max(each)) if each else (0, 0)
    some = f"{low} to {high}" if low != high else str(low)
    clusters = f"each cluster withstands {some} lying client{'s' * (high != 1)}"
    told = [f"liars: robust.cluster = {found['cluster_rule']}: " + (clusters if each else UNKNOWN)]
    rule, proven, hopeless = found["server_rule"], found["servers"], found["hopeless_servers"]
    withstood = UNKNOWN
    if proven is not None:
        withstood = f"the graph is proven to withstand {proven} lying server{'s' * (proven != 1)}"
    told.append(
        f"liars: robust.servers = {rule}: {withstood}; {hopeless} in the worst "
        f"place{'s' * (hopeless != 1)} can break every rule"
    )
    if found["clients"] is not None:
        told.append(
            f"liars: in all, this withstands {found['clients']} lying clients, wherever they are; "
            f"one more, in the worst place, may break the run"
        )
    return told


UNKNOWN = "it is not proven how many liars this rule withstands"


def _agreement_table(rows: list[tuple[str, Agreement]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("mixing", no_wrap=True)  # names that are cut off cannot be typed
    heads = ("servers heard", "models per exchange", "exact after", "left after 1", "after 4")
    for head in (*heads, "0.1 % left after", "models sent by then"):
        table.add_column(head)
    for name, found in rows:
        exact = "-" if found.exact is None else str(found.exact)
        later = found.left[3] if len(found.left) > 3 else 0.0
        nearly = found.until(NEARLY) or ("> 400", "-")
        shares = f"{100 * found.left[0]:.1f} %", f"{100 * later:.1f} %"
        sent = f"{found.messages:.3g}"
        table.add_row(name, str(found.degree), sent, exact, *shares, *map(str, nearly))
    return table


def _topology_table(net: Any) -> Table:
    table = Table("server", "share", "neighbours (weight)", "own weight", box=None, pad_edge=False)
    for d in net.servers:
        takes = [f"{j} ({_weight(net.mixing[d, j])})" for j in net.servers if net.links[d, j]]
        table.add_row(str(d), f"{net.mass[d]:.3f}", "  ".join(takes), _weight(net.mixing[d, d]))
    return table


def _weight(value: float) -> str:
    return f"{round(value, 3) + 0.0:.3f}"  # adding 0 turns -0.0 into 0.0
