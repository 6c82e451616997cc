"""The goals for a deployment, each with what this machine achieves: `sdfeel bench deploy`."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sdfeel.bench import shaped_links, transport_speed
from sdfeel.bench.deployed_rounds import (
    Laps,
    Shape,
    federation,
    laps,
    prepared,
    records,
    run_to_the_end,
    simulated,
)
from sdfeel.bench.transport_speed import measure as measure_transport
from sdfeel.core.errors import InputError
from sdfeel.core.events import Round
from sdfeel.deploy.node_directories import on_loopback

ROUND = 0.050  # seconds of a round on loopback
TRANSFER = 200.0  # megabytes per second
AGREEMENT = 0.10  # of the simulator's round, over or under
BESIDE = 0.20  # how much longer calls may take while idle connections are open
CLIENT_MBPS, SERVER_MBPS = 5.0, 50.0
PRICES = (
    f"latency.client_server_mbps={CLIENT_MBPS}",
    f"latency.server_server_mbps={SERVER_MBPS}",
    "latency.downlink=true",  # real models come down the link, too
    "latency.operations=1e-9",  # nobody trains
)
URGENCY = 5  # of 99: the kernel's own threads come first
PATIENCE = 300.0  # seconds for all rounds on loopback


@dataclass(frozen=True)
class MeasuredGoal:
    """One line of the table. `met` is None where it could not be measured."""

    what: str
    goal: str
    measured: str
    met: bool | None
    figures: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


SMALL = 21_840  # parameters of the paper's CNN for MNIST
# As many exchanges as the paper has for its small model and for its large one. Few nodes, because
# all of them share this machine's processors, unlike the simulator's.
OVER_LINKS = {
    SMALL: (Shape(2, 4, "mnist-cnn", 1), Shape(2, 4, "mnist-cnn", 5)),
    397_510: (Shape(2, 4, "mlp", 5, ("hidden=500",)),),
}


def measure_round(directory: Path) -> Iterator[MeasuredGoal]:
    """A whole round on loopback, durable and encrypted, but without training."""
    shape = Shape(3, 6, "mnist-cnn")
    federation(prepared(directory, shape, 200), directory, on_loopback(shape.servers))
    run_to_the_end(directory, PATIENCE)
    found = laps(records(directory))
    yield MeasuredGoal(
        f"a round of {shape.servers} servers and {shape.clients} clients, {SMALL:,} parameters, "
        f"without training",
        f"below {ROUND * 1000:.0f} ms",
        f"{found.seconds * 1000:.1f} ms",
        found.seconds < ROUND,
        _figures(found),
        f"median of {found.rounds}: clients {_ms(found.gather)}, servers {_ms(found.mix)}, commit "
        f"{_ms(found.commit)}; best {_ms(found.best)}",
    )


def measure_transfer(directory: Path) -> Iterator[MeasuredGoal]:
    """A large model, both ways."""
    for speed in measure_transport():
        if speed.bytes > 10**6:
            rate = speed.megabytes_per_second
            yield MeasuredGoal(
                f"a {speed.kind} of {speed.size} with mutual TLS",
                f"above {TRANSFER:.0f} MB/s",
                f"{rate:,.0f} MB/s",
                rate > TRANSFER,
                {"seconds": speed.median, "best_seconds": speed.best, "megabytes_per_second": rate},
            )


def measure_links(directory: Path) -> Iterator[MeasuredGoal]:
    """Real links of a known speed, compared with the simulator's clock for the same network."""
    reason = shaped_links.why_not()
    for parameters, shapes in OVER_LINKS.items():
        for shape in shapes:
            home = directory / f"{shape.model}-{shape.alpha}"
            yield _over_links(home, shape, parameters, reason)


def _over_links(directory: Path, shape: Shape, parameters: int, reason: str | None) -> MeasuredGoal:
    what = (
        f"a round over links of {CLIENT_MBPS:g} and {SERVER_MBPS:g} Mbit/s, {parameters:,} "
        f"parameters, exchanges between servers: {shape.alpha}"
    )
    goal = f"within {AGREEMENT * 100:.0f} % of the simulator's"
    if reason is not None:
        return MeasuredGoal(what, goal, "not measured", None, note=reason)
    rounds = 40 if parameters == SMALL else 6
    ready = prepared(directory, shape, rounds, PRICES)
    federation(ready, directory, shaped_links.edge_addresses(shape.servers), shaped_links.address)
    shaped_links.run_shaped(directory, CLIENT_MBPS, SERVER_MBPS)
    return _compared(what, goal, laps(records(directory)), simulated(ready))


def _compared(what: str, goal: str, found: Laps, expected: Round) -> MeasuredGoal:
    """A measured round, compared with a simulated one."""
    off = found.seconds / expected.seconds - 1
    return MeasuredGoal(
        what,
        goal,
        f"{found.seconds:.3f} s for {expected.seconds:.3f} s: {off * 100:+.1f} %",
        abs(off) <= AGREEMENT,
        {**_figures(found), "simulated_seconds": expected.seconds, "off": off},
        f"median of {found.rounds}: clients {_ms(found.gather)} for "
        f"{_ms(expected.phases['upload'])}, servers {_ms(found.mix)} for "
        f"{_ms(expected.phases['mix'])}, commit {_ms(found.commit)}; best {_ms(found.best)}",
    )


def measure_idle(directory: Path) -> Iterator[MeasuredGoal]:
    """An honest caller while idle connections are open."""
    alone, beside = transport_speed.beside_strangers()
    longer = beside.seconds / alone.seconds - 1
    yield MeasuredGoal(
        f"a push and a pull of 0.09 MB with {transport_speed.IDLE} idle connections open",
        f"below {BESIDE * 100:.0f} % longer",
        f"{longer * 100:+.1f} %",
        longer < BESIDE,
        {"alone_seconds": alone.seconds, "beside_seconds": beside.seconds, "longer": longer},
        f"{alone.seconds * 1000:.2f} ms without, {beside.seconds * 1000:.2f} ms with them",
    )


@contextmanager
def ahead_of_others() -> Iterator[None]:
    """What is started inside takes precedence over everything else, as on a dedicated machine."""
    try:
        before = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(URGENCY))
    except (AttributeError, PermissionError):
        raise InputError(
            "--urgent needs real-time priority: run it as root on Linux, or leave it out"
        ) from None
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


PARTS: dict[str, Callable[[Path], Iterator[MeasuredGoal]]] = {
    "round": measure_round,
    "transfer": measure_transfer,
    "links": measure_links,
    "idle": measure_idle,
}


def _figures(found: Laps) -> dict[str, float]:
    return {
        "seconds": found.seconds,
        "best_seconds": found.best,
        "gather_seconds": found.gather,
        "mix_seconds": found.mix,
        "commit_seconds": found.commit,
        "rounds": found.rounds,
    }


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
