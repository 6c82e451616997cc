"""Event logs for the tests: small ones that contain everything a log can contain."""

import json
from collections.abc import Iterable
from pathlib import Path

from sdfeel.core.events import Evaluated, Event, Finished, Round, Started, Warned, to_record
from sdfeel.core.run_files import EVENTS

RING = ((0, 1), (0, 3), (1, 2), (2, 3))
CREW = ((0, 0.25, 0.5), (1, 0.5, 0.5))


def line(event: Event) -> bytes:
    return json.dumps(to_record(event)).encode() + b"\n"


def write(directory: Path, events: Iterable[Event], more: bytes = b"") -> Path:
    """A log in a directory; `more` is appended as it is."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / EVENTS).write_bytes(b"".join(map(line, events)) + more)
    return directory


def started(scheme: str = "async-sd-feel", seed: int = 0) -> Started:
    return Started(
        scheme, 8, 4, 100, "loop", seed, 0.5, 0, "it fits", RING, (0, 0, 1, 1, 2, 2, 3, 3)
    )


def played(number: int) -> Round:
    """A round of 1.25 s; the four lanes follow one another, each mixing with its neighbours."""
    server, turn = (number - 1) % 4, (number - 1) // 4
    return Round(
        number=number,
        lane=(server,),
        iterations=5 * turn,
        seconds=1.25 * (turn + 1),
        bytes=1000 * number,
        joules=2.0 * number,
        clients=2,
        phases={"compute": 0.5, "upload": 0.5, "mix": 0.25},
        mixed=tuple(sorted({server, (server + 1) % 4, (server - 1) % 4})),
        crew=tuple((2 * server + i, busy, sent) for i, busy, sent in CREW) if turn == 0 else None,
    )


def measured(number: int, accuracy: float | None = None) -> Evaluated:
    learnt = min(0.95, number / 50) if accuracy is None else accuracy
    return Evaluated(
        number=number,
        iterations=5 * (number // 4),
        seconds=1.25 * (number // 4),
        bytes=1000 * number,
        joules=2.0 * number,
        loss=2.3 / (1 + number),
        test_loss=2.4 / (1 + number),
        accuracy=learnt,
        spread=0.1,
        distances=(0.1, 0.2, 0.3, 0.4),
    )


def events(rounds: int = 40, scheme: str = "async-sd-feel", seed: int = 0) -> list[Event]:
    """A whole run, measured every four rounds."""
    found: list[Event] = [Warned("the step size is large"), started(scheme, seed), measured(0)]
    for number in range(1, rounds + 1):
        found.append(played(number))
        if number % 4 == 0:
            found.append(measured(number))
    last = found[-1]
    assert isinstance(last, Evaluated)
    return [
        *found,
        Finished(rounds, last.iterations, last.seconds, last.bytes, 0.0, "all done", "ab" * 32),
    ]
