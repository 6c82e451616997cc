"""Commands that run federations of real processes, and one node of them."""

from __future__ import annotations

import shlex
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from sdfeel.cli.common import (
    AsJson,
    ExperimentFile,
    Out,
    Settings,
    fresh_directory,
    people,
    print_json,
    results,
    stopping,
)
from sdfeel.cli.lazy import later
from sdfeel.cli.show import show
from sdfeel.core.errors import InputError
from sdfeel.deploy.status import audited
from sdfeel.report.progress import Progress
from sdfeel.report.units import duration

with later():
    from sdfeel.deploy import backup as backups
    from sdfeel.deploy import certificates, files, membership, operator
    from sdfeel.deploy import chaos as disturbances
    from sdfeel.deploy import init as writing
    from sdfeel.deploy import local as one_machine
    from sdfeel.deploy import node as process
    from sdfeel.experiment import schema


deploy = typer.Typer(
    help="Run an experiment as real processes: on this machine, or on a list of hosts.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)

Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="KEY=VALUE",
        help="What edge servers do when others are away, such as dead_edge=drop; may be repeated.",
    ),
]


@deploy.command()
def local(
    experiment: ExperimentFile = None,
    settings: Settings = None,
    policy: Policies = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Deploy a whole federation on this machine: a process per node, certificates, loopback.

    The result is a run like a simulated one. For synchronous schemes the model is the same, bit
    for bit. If you call it again with the same --out, it continues where it stopped.

    Examples:

      sdfeel deploy local --set network.clients=6 --set network.servers=3

      sdfeel deploy local my.toml --out runs/real
    """
    chosen, rules = schema.load(experiment, settings or ()), files.read_policy(policy or ())
    directory = out if out is not None else fresh_directory(f"deploy-{chosen.scheme.name}")
    deployment = one_machine.LocalDeployment(chosen, directory, rules)
    again = shlex.join(["sdfeel", *sys.argv[1:]])
    _follow(deployment, again if out is not None else f"{again} --out {directory}")
    show(directory, None, as_json)


def _follow(deployment: one_machine.LocalDeployment, again: str) -> None:
    """Show progress until the end; `again` is the command that continues after a stop."""
    label = f"{deployment.experiment.scheme.name} (deployed)"
    names = deployment.processes.names
    people.print(f"starting {len(names)} processes in {escape(str(deployment.directory))}")
    with (
        suppress(KeyboardInterrupt),
        Progress({label: deployment.total_rounds}, people) as progress,
        stopping(deployment.stop),
    ):
        for event in deployment:
            progress.update(label, event)
    if not deployment.finished:
        people.print(f"stopped; nothing is lost. Continue with: {escape(again)}", soft_wrap=True)
        raise typer.Exit(130)


@deploy.command()
def init(
    directory: Annotated[Path, typer.Argument(help="A new directory for the deployment.")],
    experiment: ExperimentFile = None,
    hosts: Annotated[
        str,
        typer.Option(
            metavar="HOST[:PORT],...",
            help="Hosts of the edge servers, used in turn (default: edge-0, edge-1, ...).",
        ),
    ] = "",
    samples: Annotated[
        str,
        typer.Option(metavar="N,N,...", help="Number of examples that each client has of its own."),
    ] = "",
    with_data: Annotated[
        bool, typer.Option(help="Also write each client's part of the experiment's data.")
    ] = False,
    device: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[N,N=]KIND",
            help="Clients that run without torch, and on what: aarch64, x86_64 or armv7, such as "
            "2,3=aarch64 (without numbers: all clients); may be repeated.",
        ),
    ] = None,
    settings: Settings = None,
    policy: Policies = None,
) -> None:
    """Write certificates, node files, systemd units, a compose file and Kubernetes manifests.

    Copy experiment.toml, network.json, trust and nodes/NAME to the host of NAME, and start it
    there. The directory `authority` stays with you.

    Examples:

      sdfeel deploy init federation my.toml --hosts cell-a.example,cell-b.example

      sdfeel deploy init federation my.toml --device 2,3=aarch64
    """
    counts = [word.strip() for word in samples.split(",") if word.strip()]
    if not all(word.isdigit() and int(word) > 0 for word in counts):
        raise InputError(f"--samples '{samples}' must be whole numbers from 1, separated by commas")
    names = [word.strip() for word in hosts.split(",") if word.strip()]
    chosen = schema.load(experiment, settings or ())
    sizes = [int(word) for word in counts] or None
    rules, devices = files.read_policy(policy or ()), device or ()
    net = writing.init(chosen, directory, names, sizes, with_data, rules, devices)
    results.print(
        f"wrote {len(net.servers)} edge servers and {len(net.samples)} clients to "
        f"{escape(str(directory))}; docs/deploy.md describes the next steps",
        soft_wrap=True,
    )


@deploy.command()
def follow(
    directory: Annotated[Path, typer.Argument(help="The directory that `deploy init` wrote.")],
    out: Out = None,
    stop: Annotated[
        bool, typer.Option(help="Stop the edge servers when training is done.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Follow a running deployment from the operator's desk: progress, measurements, the model.

    Example:

      sdfeel deploy follow federation --out runs/real
    """
    target = out if out is not None else fresh_directory("deploy")
    desk = operator.Operator(directory, target, stop)
    label = f"{desk.ready.experiment.scheme.name} (deployed)"
    with (
        suppress(KeyboardInterrupt),
        Progress({label: desk.ready.rounds}, people) as progress,
        stopping(desk.leave),
    ):
        for event in desk:
            progress.update(label, event)
    if not desk.finished:
        people.print(
            "stopped following; the federation keeps running. Follow it again at any time."
        )
        raise typer.Exit(130)
    show(target, None, as_json)


@deploy.command()
def status(
    directory: Annotated[Path, typer.Argument(help="A deployment, or the directory of one node.")],
    as_json: AsJson = False,
) -> None:
    """Show the state of a deployment's nodes.

    Edge servers that run elsewhere are asked, with the operator's certificate; the state of
    clients, and of nodes on this host, comes from their status files.

    Example:

      sdfeel deploy status runs/real
    """
    found = backups.statuses(directory, time.time())
    if as_json:
        print_json({"nodes": found})
        return
    table = Table(box=None, pad_edge=False)
    for name in ("node", "state", "round", "lag", "traffic", "trouble"):
        table.add_column(name, justify="right" if name in ("round", "lag", "traffic") else "left")
    for node in found:
        table.add_row(*_row(node))
    results.print(table)


def _row(node: dict[str, Any]) -> list[str]:
    colour = {"running": "green", "finished": "green"}.get(node["state"], "red")
    trouble = str(node.get("last_error") or "")
    return [
        escape(node["name"]),
        f"[{colour}]{node['state']}[/]",
        str(node.get("round", "")),
        duration(float(node.get("lag", 0.0))),
        f"{float(node.get('bytes', 0)) / 1e6:.2f} MB",
        escape("; ".join(part for part in (*_situation(node), trouble) if part)),
    ]


def _situation(node: dict[str, Any]) -> list[str]:
    """Which nodes are missing, and which work away from their own server."""
    named = (("guests", "guests"), ("absent", "goes on without"), ("waiting_for", "waits for"))
    told = [f"{words} {', '.join(node[key])}" for key, words in named if node.get(key)]
    return [f"guest of {node['guest_of']}", *told] if node.get("guest_of") else told


@deploy.command()
def change(
    directory: Annotated[Path, typer.Argument(help="The directory that `deploy init` wrote.")],
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="CHANGE...",
            help="client-3=none, client-4=edge-1, or client-5=80 for its number of examples.",
        ),
    ],
    round_: Annotated[
        int, typer.Option("--round", min=2, help="The first round with the changed network.")
    ],
) -> None:
    """Let clients join, leave or move while a synchronous federation runs.

    It signs a new version of the network. Copy it to an edge server; the others and the clients
    take it from there. It takes effect with its first round everywhere, or nowhere.

    Example:

      sdfeel deploy change federation --round 200 client-3=none client-7=edge-1 client-7=120
    """
    made = membership.change(directory, round_ - 1, words)
    certificates.publish(directory)
    _told(
        f"epoch {made.number} from round {round_} on. Copy {directory}/trust to all hosts and "
        f"{directory}/epochs to an edge server's before that round begins; to a new client's host "
        f"all three: its directory in nodes, trust and epochs"
    )


FederationDir = Annotated[Path, typer.Argument(help="The directory that `deploy init` wrote.")]
Days = Annotated[float, typer.Option(min=1, help="How long certificates are valid.")]


@deploy.command()
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
    _told(
        f"{node}: certificate {made.serial}, until {made.expires:%Y-%m-%d}. Copy {directory}/trust "
        f"to all hosts, then {made.directory} to the node's"
    )


@deploy.command()
def renew(
    directory: FederationDir,
    nodes: Annotated[list[str] | None, typer.Argument(help="The nodes (default: all).")] = None,
    within: Annotated[
        float | None,
        typer.Option(metavar="DAYS", help="Only certificates that expire within so many days."),
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
        _told(f"{made.directory.parent.name}: certificate {made.serial}, {made.expires:%Y-%m-%d}")
    if not done:
        _told("no certificate expires that soon: nothing was changed")
        return
    _told(
        f"Copy {directory}/trust to all hosts, then each node its {certificates.IDENTITY}; then "
        f"end the old ones: sdfeel deploy revoke {directory} NODE --superseded"
    )


@deploy.command()
def revoke(
    directory: FederationDir,
    which: Annotated[str, typer.Argument(help="A node, or the serial number of a certificate.")],
    superseded: Annotated[
        bool, typer.Option("--superseded", help="Only what a newer certificate has replaced.")
    ] = False,
) -> None:
    """Take certificates off the allow-list. Once copied to the hosts, it takes effect in seconds.

    Examples:

      sdfeel deploy revoke federation client-7

      sdfeel deploy revoke federation edge-0 --superseded
    """
    count = certificates.revoke_node(directory, which, superseded)
    _told(f"{count} certificates of {which} are revoked. Copy {directory}/trust to all hosts")


@deploy.command()
def rotate(
    directory: FederationDir,
    finish: Annotated[
        bool, typer.Option("--finish", help="Trust only the new authority, once all have renewed.")
    ] = False,
    days: Days = 3650,
) -> None:
    """Replace the authority's key: rotate, renew all, rotate --finish, copying after each.

    Example:

      sdfeel deploy rotate federation
    """
    count = certificates.rotate(directory, finish, days)
    what = "trust the new authority alone" if finish else "trust the old authority and the new one"
    _told(f"{count} nodes {what}. Copy each node its {certificates.IDENTITY}")
    if not finish:
        _told(f"When all have it: sdfeel deploy renew {directory}, then this with --finish")


def _told(text: str) -> None:
    results.print(escape(text), soft_wrap=True)


@deploy.command()
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


@deploy.command()
def backup(directory: FederationDir) -> None:
    """Have all running edge servers copy their states, each as it opens the same round.

    The copies stay with the servers, in `backups` in each node's directory: fetch them from there.

    Example:

      sdfeel deploy backup federation
    """
    for name, place in backups.backup(directory).items():
        results.print(f"{name}: {escape(place)}", soft_wrap=True)


@deploy.command()
def restore(
    node: Annotated[Path, typer.Argument(help="The directory of a stopped edge server.")],
    copy: Annotated[Path, typer.Argument(help="Its backup.")],
) -> None:
    """Replace an edge server's state with a backup.

    Restore all servers to the same round: they continue from there with the same bits.

    Example:

      sdfeel deploy restore nodes/edge-0 nodes/edge-0/backups/round-40
    """
    k = backups.restore(node, copy)
    results.print(
        f"{node.name} continues in round {k + 1}; its old state is kept beside it", soft_wrap=True
    )


@deploy.command()
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


@deploy.command()
def chaos(
    experiment: ExperimentFile = None,
    kills: Annotated[int, typer.Option(min=1, help="Processes to kill in each run.")] = 20,
    runs: Annotated[int, typer.Option(min=1, help="Number of disturbed runs.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Decides what is killed and when; printed.")] = 1,
    broken: Annotated[
        bool,
        typer.Option(
            "--break",
            help="Negative control: clients forget where they were, so the model must differ.",
        ),
    ] = False,
    settings: Settings = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Kill (-9) and restart processes at random, and compare the model with an undisturbed run's.

    Examples:

      sdfeel deploy chaos --set network.clients=6 --set network.servers=3 --kills 50

      sdfeel deploy chaos --break --kills 10
    """
    chosen = schema.load(experiment, settings or ())
    directory = out if out is not None else fresh_directory("chaos")
    people.print(
        f"an undisturbed run, then {runs} with {kills} kills (seed {seed}) in "
        f"{escape(str(directory))}",
        soft_wrap=True,
    )
    word = "forgetful" if broken else "killed"
    labels = ["undisturbed", *(f"{word}-{n + 1}" for n in range(runs))]
    outcomes: list[disturbances.Outcome] = []
    with Progress(dict.fromkeys(labels, 0), people) as progress:
        for n, label in enumerate(labels):
            show = partial(progress.update, label)
            many = kills if n else 0
            found = disturbances.disturbed(
                label, chosen, directory / label, many, seed + n - 1, broken and n > 0, show
            )
            outcomes.append(found)
    for each in outcomes[1:]:
        done = sum(each.kills.values())
        if done < kills:
            people.print(
                f"{each.label}: only {done} of {kills} kills, since the run ended first; give "
                f"it more training.iterations"
            )
    expected = [disturbances.equal(each, outcomes[0]) != broken for each in outcomes[1:]]
    if as_json:
        runs_done = [vars(each) for each in outcomes]
        print_json({"seed": seed, "runs": runs_done, "as_expected": all(expected)})
    else:
        results.print(_table(outcomes))
    if not all(expected):
        raise typer.Exit(1)


def _table(outcomes: list[disturbances.Outcome]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("run", "killed edges", "killed clients", "rounds", "seconds", "model", "equal"):
        table.add_column(name, justify="left" if name in ("run", "model", "equal") else "right")
    for each in outcomes:
        table.add_row(
            each.label,
            str(each.kills["edge"]),
            str(each.kills["client"]),
            str(each.rounds),
            f"{each.seconds:.1f}",
            each.model_sha256[:12],
            "" if each is outcomes[0] else "yes" if disturbances.equal(each, outcomes[0]) else "no",
        )
    return table


NodeFilePath = Annotated[Path, typer.Argument(metavar="NODE.toml", help="The node's own file.")]


def edge(node: NodeFilePath) -> None:
    """Run one edge server until the federation is done (see `sdfeel deploy init`).

    Example:

      sdfeel edge nodes/edge-0/node.toml
    """
    process.run_edge_node(node)


def client(node: NodeFilePath) -> None:
    """Run one client on its own data until the federation is done.

    Example:

      sdfeel client nodes/client-0/node.toml
    """
    process.run_client_node(node)
