"""Clients that move by a trace, deployed: every move becomes a signed version of the network.

In a simulation, a trace is asked at every round where clients are. Servers on different hosts have
only their rounds in common, so a trace that counts rounds can be replayed: it is written as the
epochs of the same moves, which are to the bit the same run. Everything else that a trace may say
is refused, with the reason.
"""

from math import ceil

import numpy as np

from sdfeel.core.errors import InputError
from sdfeel.core.network import Network
from sdfeel.core.whereabouts import Whereabouts
from sdfeel.experiment.build import Prepared, prepare
from sdfeel.experiment.schema import Experiment

MOST = 1000  # versions of a network: each is signed, sent and kept


def replayed(ready: Prepared) -> Prepared:
    """The same experiment, with moves written as epochs; as it is where nobody moves."""
    trace = None if ready.decisions.outages is None else ready.decisions.outages.clients
    if trace is None:
        return ready
    experiment = ready.experiment
    section, name = experiment.network, str(experiment.network.whereabouts)
    if trace.unit != "round":
        raise InputError(
            f"{name} says in seconds where clients are, but deployed servers have no common clock: "
            f"give the file a column `round` in place of `seconds`, or leave out "
            f"network.whereabouts and let `sdfeel deploy change` move real clients"
        )
    lines = _epochs(trace, ready.net, ready.rounds, name)
    if lines and ready.decisions.net.shelves:
        raise InputError(
            f"{name} would be deployed as epochs, and what is kept beside the servers' models "
            f"begins again with each of them, here {ready.decisions.net.shelves[0].name}: leave "
            f"out server.optimizer, or network.whereabouts"
        )
    if section.epochs:
        raise InputError(
            f"network.epochs and {name} both say which server a client has: leave one of them out"
        )
    moved = {"whereabouts": None, "whereabouts_period": None, "epochs": lines}
    again = experiment.model_copy(update={"network": section.model_copy(update=moved)})
    return _prepared(again, name)


def _prepared(experiment: Experiment, name: str) -> Prepared:
    try:
        return prepare(experiment)
    except InputError as error:
        raise InputError(f"{name} would be deployed as epochs, but {error}") from None


def _epochs(trace: Whereabouts, net: Network, rounds: int, name: str) -> list[str]:
    """What changes, and from which round on, as `network.epochs` has it."""
    events = sorted({ceil(when) for when in trace.when if ceil(when) < rounds})
    found, before = [], net.home
    for k in range(rounds) if trace.period else events:
        now = trace.at(net, k, 0.0)
        _check(net, now, k, name)
        moved = np.flatnonzero(now.home != before).tolist()
        if moved:
            words = ", ".join(f"client-{n}=edge-{now.home[n]}" for n in moved)
            found.append(f"{k + 1}: {words}")
        before = now.home
    if len(found) > MOST:
        raise InputError(
            f"{name} moves clients in {len(found)} rounds, and a deployment signs a version of its "
            f"network for each, {MOST} at most: let clients move less often"
        )
    return found


def _check(net: Network, now: Network, k: int, name: str) -> None:
    """Refuse what only a simulation knows."""
    away = np.flatnonzero((net.home >= 0) & (now.home < 0))
    if len(away):
        raise InputError(
            f"{name} lets client {away[0]} be away in round {k + 1}, but deployed clients are away "
            f'when they are silent: leave absences out, and set dead_client = "drop" in the policy'
        )
    empty = np.flatnonzero((net.mass > 0) & (now.mass == 0))
    if len(empty):
        raise InputError(
            f"{name} leaves edge-{empty[0]} without clients in round {k + 1}, and deployed servers "
            f"do not rest: leave a client there"
        )
