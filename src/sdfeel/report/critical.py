"""For whom each round waited, and how much sooner it would have ended without them."""

from collections.abc import Iterable
from dataclasses import dataclass

from sdfeel.report.timeline import Played

SERVERS = "mixing between servers"


@dataclass(frozen=True)
class Holdup:
    """Somebody for whom rounds waited."""

    who: str
    rounds: int  # in which all others were done earlier
    seconds: float  # by which these rounds would have been shorter without it
    computing: float  # seconds that it computed in them, on average
    sending: float


def holdups(rounds: Iterable[Played]) -> list[Holdup]:
    """All for whom rounds waited, the dearest first.

    A round ends when its last client's model has arrived and servers have mixed. Without that
    client it would have ended with the last but one; a round of one client has nobody to wait for.
    """
    found: dict[int, list[tuple[float, float, float]]] = {}
    mixed: list[float] = []
    for each in rounds:
        if each.round.mixed and each.end > each.collected:
            mixed.append(each.end - each.collected)
        works = {client: work for client in each.crew or () if (work := each.work(client))}
        order = sorted(works, key=lambda client: works[client].sending[1])
        if len(order) < 2:
            continue
        last, before = works[order[-1]], works[order[-2]]
        gain = last.sending[1] - before.sending[1]
        if gain > 0:
            spent = last.computing[1] - last.computing[0], last.sending[1] - last.sending[0]
            found.setdefault(order[-1], []).append((gain, *spent))
    rows = [
        Holdup(f"client {client}", len(own), *(sum(part) for part in zip(*own, strict=True)))
        for client, own in found.items()
    ]
    rows = [
        Holdup(r.who, r.rounds, r.seconds, r.computing / r.rounds, r.sending / r.rounds)
        for r in rows
    ]
    if mixed:
        rows.append(Holdup(SERVERS, len(mixed), sum(mixed), 0.0, sum(mixed) / len(mixed)))
    return sorted(rows, key=lambda row: (-row.seconds, row.who))
