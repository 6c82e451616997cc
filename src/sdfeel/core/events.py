"""What happened. One record is one line of a log, whether the run was simulated or deployed."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

Confusion = tuple[tuple[int, ...], ...]  # (K, K)
Crew = tuple[tuple[int, float, float], ...]  # client, seconds computing, seconds sending


@dataclass(frozen=True)
class Started:
    """A run begins, or continues: a resumed run has another such line."""

    scheme: str
    clients: int
    servers: int
    parameters: int  # numbers in one model
    engine: str
    seed: int
    zeta: float  # how slowly the servers agree: 0 at once, 1 never
    iterations: int = 0  # already done when this line was written
    engine_reason: str = ""  # why this engine computes the run
    edges: tuple[tuple[int, int], ...] = ()  # the server graph, lower number first
    home: tuple[int, ...] = ()  # each client's server; -1 for a client that takes no part
    clock: str = "virtual"  # whose seconds the log counts; a deployment's are "real"
    places: tuple[tuple[float, float], ...] = ()  # each server's longitude and latitude, if known


@dataclass(frozen=True)
class Round:
    """A lane finished a round. Seconds, bytes and joules count from the start of the run."""

    number: int  # rounds of all lanes so far
    lane: tuple[int, ...]
    iterations: int
    seconds: float
    bytes: int
    joules: float
    clients: int  # that took part
    phases: dict[str, float]  # seconds of this round: compute, upload, mix
    mixed: tuple[int, ...] = ()  # servers whose models the mixing between servers changed
    crew: Crew | None = None  # None: as in this lane's previous round, or too many to list
    energy: dict[str, float] = field(default_factory=dict)  # joules of this round, by purpose
    figures: dict[str, float] = field(default_factory=dict)  # the scheme's own, of this round


@dataclass(frozen=True)
class Evaluated:
    """What the run would return now, measured: most often the mean of the servers' models.

    Where clients have models of their own, losses and accuracy are means over clients, each
    measured on its own training examples and on test examples of its own classes.
    """

    number: int
    iterations: int
    seconds: float
    bytes: int
    joules: float
    loss: float  # on training data
    test_loss: float
    accuracy: float | None  # on test data; None where there are no classes
    spread: float  # how far the servers' models are from their mean
    metrics: dict[str, float] = field(default_factory=dict)  # the user's; the scheme's figures
    distances: tuple[float, ...] = ()  # of each server's model from their mean
    personal: tuple[float, ...] = ()  # the accuracy of each client's own model, if they have any
    confusion: Confusion = ()  # at the end: test examples by class, and by what they are taken for


@dataclass(frozen=True)
class Warned:
    """Something that the user should know."""

    message: str


@dataclass(frozen=True)
class Finished:
    """The run is over: `reason` says which of its ends it met."""

    number: int
    iterations: int
    seconds: float
    bytes: int
    joules: float
    reason: str
    model_sha256: str


Event = Started | Round | Evaluated | Warned | Finished
_KINDS: dict[str, type[Event]] = {
    kind.__name__.lower(): kind for kind in (Started, Round, Evaluated, Warned, Finished)
}


def to_record(event: Event) -> dict[str, Any]:
    """
    >>> to_record(Warned("step size is large"))
    {'event': 'warned', 'message': 'step size is large'}
    """
    return {"event": type(event).__name__.lower(), **dataclasses.asdict(event)}


def from_record(record: dict[str, Any]) -> Event:
    """The inverse of `to_record`; fields of newer versions are ignored.

    >>> from_record({"event": "warned", "message": "hot", "colour": "red"})
    Warned(message='hot')
    """
    kind = _KINDS[record["event"]]
    names = {f.name for f in dataclasses.fields(kind)}
    values = {name: value for name, value in record.items() if name in names}
    return kind(**{name: _frozen(value) for name, value in values.items()})


def _frozen(value: Any) -> Any:
    """JSON has only lists; records hold tuples."""
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value
