"""Commands of `sdfeel deploy` by which an operator looks after a federation that runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from sdfeel.cli.common import AsJson, print_json, results
from sdfeel.cli.lazy import later
from sdfeel.core.run_files import VERIFICATION, write_atomic
from sdfeel.deploy.status import audited

with later():
    from sdfeel.deploy import backup as backups
    from sdfeel.deploy import certificates, membership
    from sdfeel.deploy import verify as verification

FederationDir = Annotated[Path, typer.Argument(help="The directory that `deploy init` wrote.")]
Days = Annotated[float, typer.Option(min=1, help="How long certificates are valid.")]


def change(
    directory: Annotated[Path, typer.Argument(help="The directory that `deploy init` wrote.")],
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="CHANGE...",
            help="client-3=none (leaves), client-4=edge-1 (its server), client-5=80 (its number of "
            "examples), edge-2=none, or edge-3=edge-0+edge-1 (a server and its links).",
        ),
    ],
    round_: Annotated[
        int, typer.Option("--round", min=2, help="The first round with the changed network.")
    ],
    address: Annotated[
        list[str] | None,
        typer.Option(help="Where a new edge server is: edge-3=host:7400; may be repeated."),
    ] = None,
) -> None:
    """Let clients and edge servers join, leave or move while a synchronous federation runs.

    The command signs a new version of the network. Copy it to an edge server; the other servers and
    the clients take it from there. It takes effect with its first round everywhere, or nowhere.

    Example:

      sdfeel deploy change federation --round 200 client-3=none client-7=edge-1 client-7=120

      sdfeel deploy change federation --round 300 edge-2=none client-4=edge-0
    """
    made = membership.change(directory, round_ - 1, words, address or ())
    certificates.publish(directory)
    _say(
        f"epoch {made.number} begins with round {round_}. Before that, copy {directory}/trust to "
        f"all hosts, and {directory}/epochs to the host of one edge server and to the clients of "
        f"every dead server. The host of a new node needs both, and the node's own directory in "
        f"{directory}/nodes"
    )


def issue(
    directory: FederationDir,
    node: Annotated[str, typer.Argument(help="A node without a certificate, such as client-7.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address of an edge server's host; may be repeated."),
    ] = None,
    days: Days = 365,
) -> None:
    """Give a node its first certificate, and put it on the allow-list.

    Example:

      sdfeel deploy issue federation client-7
    """
    made = certificates.issue_node(directory, node, host or (), days)
    _say(
        f"{node}: certificate {made.serial}, until {made.expires:%Y-%m-%d}. Copy {directory}/trust "
        f"to all hosts, then {made.directory} to the node's host"
    )


def renew(
    directory: FederationDir,
    nodes: Annotated[list[str] | None, typer.Argument(help="The nodes (default: all).")] = None,
    within: Annotated[
        float | None,
        typer.Option(metavar="DAYS", help="Only certificates that expire within this many days."),
    ] = None,
    days: Days = 365,
) -> None:
    """Replace certificates and keys. The old ones stay valid until they are revoked.

    Nodes use the new files as soon as they have them, without a restart.

    Examples:

      sdfeel deploy renew federation --within 30

      sdfeel deploy renew federation edge-0
    """
    done = certificates.renew(directory, nodes or (), within, days)
    for made in done:
        name, until = made.directory.parent.name, f"{made.expires:%Y-%m-%d}"
        _say(f"{name}: certificate {made.serial}, until {until}")
    if not done:
        _say("no certificate expires that soon: nothing was changed")
        return
    _say(
        f"Copy {directory}/trust to all hosts, then to each node its {certificates.IDENTITY}. Then "
        f"end the old certificates: sdfeel deploy revoke {directory} NODE --superseded"
    )


def revoke(
    directory: FederationDir,
    which: Annotated[str, typer.Argument(help="A node, or the serial number of a certificate.")],
    superseded: Annotated[
        bool, typer.Option("--superseded", help="Only certificates that a newer one replaces.")
    ] = False,
) -> None:
    """Take certificates off the allow-list. Once copied to the hosts, it takes effect in seconds.

    Examples:

      sdfeel deploy revoke federation client-7

      sdfeel deploy revoke federation edge-0 --superseded
    """
    count = certificates.revoke_node(directory, which, superseded)
    revoked = "1 certificate" if count == 1 else f"{count} certificates"
    _say(f"revoked {revoked} of {which}. Copy {directory}/trust to all hosts")


def rotate(
    directory: FederationDir,
    finish: Annotated[
        bool, typer.Option("--finish", help="Trust only the new authority, once all have renewed.")
    ] = False,
    days: Days = 3650,
) -> None:
    """Replace the authority's key: rotate, renew, rotate --finish; copy the files after each step.

    Example:

      sdfeel deploy rotate federation
    """
    count = certificates.rotate(directory, finish, days)
    what = "trust only the new authority" if finish else "trust the old authority and the new one"
    _say(f"{count} nodes {what}. Copy to each node its {certificates.IDENTITY}")
    if not finish:
        _say(f"When all have it: sdfeel deploy renew {directory}, then this command with --finish")


def _say(text: str) -> None:
    results.print(escape(text), soft_wrap=True)


def audit(
    directory: Annotated[Path, typer.Argument(help="A deployment, or the directory of one node.")],
    head: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="The hash of a line that must still be in the log."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that no line of the nodes' audit logs was changed, and show whom they turned away.

    From time to time, keep the head of a log (`deploy status --json`) somewhere else: with --head,
    this command then notices even a log that was rewritten as a whole.

    Example:

      sdfeel deploy audit runs/real
    """
    found = audited(directory, head)
    whole = all("error" not in each for each in found)
    if as_json:
        print_json({"nodes": found, "whole": whole})
    else:
        table = Table(box=None, pad_edge=False)
        for name in ("node", "log", "lines", "calls", "head"):
            table.add_column(name, justify="right" if name == "lines" else "left")
        for each in found:
            calls = ", ".join(f"{count} {what}" for what, count in each["outcomes"].items())
            state = "whole" if "error" not in each else "[red]damaged[/]"
            table.add_row(each["name"], state, str(each["lines"]), calls, each["head"][:12])
        results.print(table)
        for each in found:
            for line in (*each["denied"], *filter(None, [each.get("error")])):
                results.print(f"{each['name']}: {escape(line)}", soft_wrap=True)
    if not whole:
        raise typer.Exit(1)


def verify(
    directory: Annotated[Path, typer.Argument(help="A deployment, with the files of its nodes.")],
    round_: Annotated[
        int | None, typer.Option("--round", min=1, help="Recompute only this round.")
    ] = None,
    client: Annotated[
        int | None, typer.Option(min=0, help="Recompute only this client's parts.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[client-N=]PATH",
            help="A client's data, or a directory with the experiment's data set for all.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute what the nodes of a synchronous deployment signed, and name who deviated.

    The command checks all signatures and what nodes say about one another, and repeats the part of
    every client and server whose inputs are at hand. Its exit code is 1 if something differs from
    what was signed.

    Examples:

      sdfeel deploy verify runs/real

      sdfeel deploy verify federation --round 7 --client 3 --data client-3=mine.npz
    """
    number = None if round_ is None else round_ - 1
    found = verification.verify(directory, number, client, data or ())
    record = found.record()
    if number is None and client is None:
        text = json.dumps(record, indent=1)
        write_atomic(directory / VERIFICATION, text.encode())
    if as_json:
        print_json(record)
    else:
        for line in found.sentences():
            _say(line)
    if not found.verified:
        raise typer.Exit(1)


def backup(directory: FederationDir) -> None:
    """Have all running edge servers copy their states, at the beginning of the same round.

    The copies stay with the servers, in `backups` in each node's directory: fetch them from there.

    Example:

      sdfeel deploy backup federation
    """
    for name, place in backups.backup(directory).items():
        results.print(f"{name}: {escape(place)}", soft_wrap=True)


def restore(
    node: Annotated[Path, typer.Argument(help="The directory of a stopped edge server.")],
    copy: Annotated[Path, typer.Argument(help="The backup of that server.")],
) -> None:
    """Replace an edge server's state with a backup.

    Restore all servers to the same round: they continue from there with the same bits.

    Example:

      sdfeel deploy restore nodes/edge-0 nodes/edge-0/backups/round-40
    """
    k = backups.restore(node, copy)
    results.print(
        f"{node.name} continues in round {k + 1}; its old state is kept next to it", soft_wrap=True
    )


def reseed(
    directory: FederationDir,
    node: Annotated[str, typer.Argument(help="The stopped edge server that lost its state.")],
) -> None:
    """Give an edge server that lost its state, and has no backup, the model of a neighbour.

    The run continues, but with different bits than it would have had.

    Example:

      sdfeel deploy reseed federation edge-2
    """
    k, whose = backups.reseed(directory, node)
    place = directory / "nodes" / node / "state"
    results.print(
        f"{node} begins in round {k + 1} with the model of {whose}: copy {escape(str(place))} to "
        f"its host and start it",
        soft_wrap=True,
    )
