"""Commands that run federations of real processes, and one node of them."""

from __future__ import annotations

import re
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
from sdfeel.cli.deploy_operate import (
    audit,
    backup,
    change,
    issue,
    renew,
    reseed,
    restore,
    revoke,
    rotate,
    verify,
)
from sdfeel.cli.lazy import later
from sdfeel.cli.show import show
from sdfeel.core.errors import InputError
from sdfeel.report.progress import Progress
from sdfeel.report.units import duration

with later():
    from sdfeel.deploy import backup as backups
    from sdfeel.deploy import chaos as disturbances
    from sdfeel.deploy import files, operator
    from sdfeel.deploy import init as writing
    from sdfeel.deploy import local as one_machine
    from sdfeel.deploy import node as process
    from sdfeel.experiment import loading


deploy = typer.Typer(
    help="Run an experiment as real processes: on this machine, or on a list of hosts.\n\n"
    "Examples:\n\n"
    "  sdfeel deploy local --set network.clients=6 --set network.servers=3\n\n"
    "  sdfeel deploy init federation my.toml --hosts cell-a.example,cell-b.example",
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
    chosen, rules = loading.load(experiment, settings or ()), files.read_policy(policy or ())
    directory = out if out is not None else fresh_directory(f"deploy-{chosen.scheme.label}")
    deployment = one_machine.LocalDeployment(chosen, directory, rules)
    again = shlex.join(["sdfeel", *sys.argv[1:]])
    _follow(deployment, again if out is not None else f"{again} --out {directory}")
    show(directory, as_json=as_json)


def _follow(deployment: one_machine.LocalDeployment, again: str) -> None:
    """Show progress until the end; `again` is the command that continues after a stop."""
    label = f"{deployment.experiment.scheme.label} (deployed)"
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
            help="Clients that run without torch, and their processors (aarch64, x86_64 or armv7), "
            "such as 2,3=aarch64; without numbers, all clients; may be repeated.",
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
    if not all(re.fullmatch("[1-9][0-9]{0,14}", word) for word in counts):
        shown = samples[:100]
        raise InputError(f"--samples '{shown}' must be whole numbers from 1, separated by commas")
    names = [word.strip() for word in hosts.split(",") if word.strip()]
    chosen = loading.load(experiment, settings or ())
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
    """Follow a running deployment as its operator: progress, measurements, the model.

    Example:

      sdfeel deploy follow federation --out runs/real
    """
    target = out if out is not None else fresh_directory("deploy")
    desk = operator.Operator(directory, target, stop)
    label = f"{desk.ready.experiment.scheme.label} (deployed)"
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
    show(target, as_json=as_json)


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


for _command in (change, issue, renew, revoke, rotate, audit, verify, backup, restore, reseed):
    deploy.command()(_command)


@deploy.command()
def chaos(
    experiment: ExperimentFile = None,
    kills: Annotated[int, typer.Option(min=1, help="Processes to kill in each run.")] = 20,
    runs: Annotated[int, typer.Option(min=1, help="Number of disturbed runs.")] = 1,
    seed: Annotated[
        int, typer.Option(min=0, help="Decides what is killed and when, to repeat a trial.")
    ] = 1,
    broken: Annotated[
        bool,
        typer.Option(
            "--break",
            help="Negative control: clients forget where they were, so the model must differ.",
        ),
    ] = False,
    liars: Annotated[int, typer.Option(min=0, help="Number of clients that lie.")] = 0,
    lying_servers: Annotated[int, typer.Option(min=0, help="Number of edge servers that lie.")] = 0,
    attack: Annotated[
        str, typer.Option(help="How they lie: sign-flip, scaling, label-flip or backdoor.")
    ] = "sign-flip",
    settings: Settings = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Kill (-9) and restart processes at random, and compare the model with an undisturbed run's.

    With liars, the simulator runs the same attack, and its model is compared, too.

    Examples:

      sdfeel deploy chaos --liars 2 --attack backdoor --kills 5 --set robust.cluster=median

      sdfeel deploy chaos --set network.clients=6 --set network.servers=3 --kills 50

      sdfeel deploy chaos --break --kills 10
    """
    chosen = loading.load(experiment, settings or ())
    chosen = disturbances.with_liars(chosen, liars, lying_servers, attack)
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
    if liars + lying_servers and outcomes[0].replayed_sha256 is None:
        outcomes.append(disturbances.simulated(chosen))
        expected.append(disturbances.equal(outcomes[-1], outcomes[0]))
    if as_json:
        runs_done = [vars(each) for each in outcomes]
        print_json({"seed": seed, "runs": runs_done, "as_expected": all(expected)})
    else:
        results.print(_table(outcomes))
    if not all(expected):
        raise typer.Exit(1)


def _table(outcomes: list[disturbances.Outcome]) -> Table:
    table = Table(box=None, pad_edge=False)
    names = ["run", "killed edges", "killed clients", "rounds", "seconds", "model", "equal"]
    names.append("accuracy")
    if outcomes[0].backdoor is not None:
        names.append("backdoor")
    for name in names:
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
            "" if each.accuracy is None else f"{each.accuracy:.1%}",
            *([] if each.backdoor is None else [f"{each.backdoor:.1%}"]),
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
