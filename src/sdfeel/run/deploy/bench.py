"""What is asked of a deployment, each with what this machine gives: `sdfeel bench deploy`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sdfeel.live.transport import siege
from sdfeel.live.transport.measure import measure as measure_transport
from sdfeel.run.deploy import bench_links
from sdfeel.run.deploy.bench_rounds import (
    CLIENTS,
    SERVERS,
    Laps,
    federation,
    laps,
    prepared,
    records,
    run_to_the_end,
    simulated,
)
from sdfeel.run.deploy.make import on_loopback

ROUND = 0.050  # seconds of a round on loopback
TRANSFER = 200.0  # megabytes per second
AGREEMENT = 0.10  # of the simulator's round, over or under
BESIDE = 0.20  # longer beside idle connections
CLIENT_MBPS, SERVER_MBPS = 5.0, 50.0
PATIENCE = 300.0  # seconds for all rounds on loopback


@dataclass(frozen=True)
class Line:
    """One line of the table. `met` is None where it could not be measured."""

    what: str
    goal: str
    measured: str
    met: bool | None
    figures: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Size:
    """A model to send over shaped links, and how often servers exchange it in a round."""

    model: str
    parameters: int
    alpha: int
    rounds: int
    settings: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.parameters:,} parameters, {self.alpha} exchange{'s' * (self.alpha > 1)}"


SMALL = Size("mnist-cnn", 21_840, 1, 40)
SIZES = (
    SMALL,
    Size("mnist-cnn", 21_840, 5, 40),
    Size("mlp", 250_435, 5, 8, ("model.options.hidden=315",)),
)


def measure_round(directory: Path) -> Iterator[Line]:
    """A whole round on loopback, durable and encrypted, but without training."""
    ready = prepared(directory, 200, [f"model.name={SMALL.model}"])
    federation(ready, directory, on_loopback(SERVERS))
    run_to_the_end(directory, PATIENCE)
    found = laps(records(directory))
    yield Line(
        f"a round of {SERVERS} servers and {CLIENTS} clients, {SMALL.parameters:,} parameters, "
        f"without training",
        f"below {ROUND * 1000:.0f} ms",
        f"{found.seconds * 1000:.1f} ms",
        found.seconds < ROUND,
        _figures(found),
        _told(found),
    )


def measure_transfer(directory: Path) -> Iterator[Line]:
    """A large model, both ways."""
    for speed in measure_transport():
        if speed.bytes > 10**6:
            rate = speed.megabytes_per_second
            yield Line(
                f"a {speed.kind} of {speed.size} with mutual TLS",
                f"above {TRANSFER:.0f} MB/s",
                f"{rate:,.0f} MB/s",
                rate > TRANSFER,
                {"seconds": speed.median, "best_seconds": speed.best, "megabytes_per_second": rate},
            )


def measure_links(directory: Path) -> Iterator[Line]:
    """Real links of a known speed beside the simulator's clock for the same network."""
    reason = bench_links.why_not()
    for number, size in enumerate(SIZES):
        yield _over_links(directory / str(number), size, reason)


def _over_links(directory: Path, size: Size, reason: str | None) -> Line:
    what = f"a round over links of {CLIENT_MBPS:g} and {SERVER_MBPS:g} Mbit/s, {size.label}"
    goal = f"within {AGREEMENT * 100:.0f} % of the simulator's"
    if reason is not None:
        return Line(what, goal, "not measured", None, note=reason)
    settings = (
        f"model.name={size.model}",
        f"scheme.alpha={size.alpha}",
        f"latency.client_server_mbps={CLIENT_MBPS}",
        f"latency.server_server_mbps={SERVER_MBPS}",
        "latency.downlink=true",
        "latency.operations=1e-9",  # nobody trains
        *size.settings,
    )
    ready = prepared(directory, size.rounds, settings)
    federation(ready, directory, bench_links.places(SERVERS), bench_links.address)
    bench_links.run_shaped(directory, CLIENT_MBPS, SERVER_MBPS)
    found, expected = laps(records(directory)), simulated(ready, size.rounds)
    off = found.seconds / expected - 1
    return Line(
        what,
        goal,
        f"{found.seconds:.3f} s, simulated {expected:.3f} s: {off * 100:+.1f} %",
        abs(off) <= AGREEMENT,
        {**_figures(found), "simulated_seconds": expected, "off": off},
        _told(found),
    )


def measure_idle(directory: Path) -> Iterator[Line]:
    """An honest caller beside idle connections."""
    alone, beside = siege.beside_strangers()
    longer = beside.seconds / alone.seconds - 1
    yield Line(
        f"a push and a pull of 0.09 MB beside {siege.IDLE} idle connections",
        f"below {BESIDE * 100:.0f} % longer",
        f"{longer * 100:+.1f} %",
        longer < BESIDE,
        {"alone_seconds": alone.seconds, "beside_seconds": beside.seconds, "longer": longer},
        f"{alone.seconds * 1000:.2f} ms alone, {beside.seconds * 1000:.2f} ms beside",
    )


PARTS: dict[str, Callable[[Path], Iterator[Line]]] = {
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


def _told(found: Laps) -> str:
    """Where the time goes."""
    parts = {"clients": found.gather, "servers": found.mix, "commit": found.commit}
    told = ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in parts.items())
    return f"median of {found.rounds}: {told}; best {found.best * 1000:.0f} ms"
