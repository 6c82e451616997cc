"""A node's own event log: the same lines as a simulated run's, from its durable records."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdfeel.core.events import Event, Finished, Round, Started, to_record
from sdfeel.live.federation import Federation

EVENTS = "events.jsonl"
Record = Mapping[str, Any]


@dataclass
class Tally:
    """Turns the records of servers into events that count from the start of the run."""

    servers: int
    bytes: int = 0
    began: float | None = None
    steps: dict[int, float] = field(default_factory=dict)  # local iterations of each server
    number: int = 0
    seconds: float = 0.0

    def round(self, records: Mapping[int, Record]) -> Round:
        """The next round, finished by these servers."""
        slowest = max(records.values(), key=lambda record: float(record["ended"]))
        if self.began is None:
            self.began = min(float(record["began"]) for record in records.values())
        self.number += 1
        self.seconds = max(float(slowest["ended"]) - self.began, self.seconds)
        self.bytes += sum(int(record["bytes"]) for record in records.values())
        self.steps |= {d: float(record["iterations"]) for d, record in records.items()}
        who = {client for record in records.values() for client in record["steps"]}
        return Round(
            number=self.number,
            lane=tuple(sorted(records)),
            iterations=int(sum(self.steps.values()) / self.servers),
            seconds=self.seconds,
            bytes=self.bytes,
            joules=0.0,
            clients=len(who),
            phases={name: float(slowest[name]) for name in ("compute", "upload", "mix")},
            mixed=tuple(slowest["mixed"]),
        )


def started(federation: Federation, engine: str, why: str) -> Started:
    """The first line of a deployed run's log."""
    net = federation.net
    return Started(
        scheme=federation.name,
        clients=len(net.samples),
        servers=len(net.servers),
        parameters=federation.initial.numel(),
        engine=engine,
        engine_reason=why,
        seed=federation.seed,
        zeta=net.zeta,
        edges=tuple(net.edges),
        home=tuple(net.home.tolist()),
    )


class Journal:
    """One server's events.jsonl. It is written anew at every start: the records are the truth."""

    def __init__(
        self, directory: Path, federation: Federation, server: int, records: Iterable[Record]
    ) -> None:
        self._path, self._server = directory / EVENTS, server
        self._tally = Tally(servers=1)
        lines: list[Event] = [started(federation, "clients", f"deployed: edge server {server}")]
        lines += [self._tally.round({server: record}) for record in records]
        self._path.write_text("".join(map(_line, lines)), encoding="utf-8")

    def append(self, record: Record) -> None:
        self._write(self._tally.round({self._server: record}))

    def finish(self, model_sha256: str) -> None:
        tally = self._tally
        self._write(
            Finished(
                number=tally.number,
                iterations=int(tally.steps.get(self._server, 0)),
                seconds=tally.seconds,
                bytes=tally.bytes,
                joules=0.0,
                reason="all iterations done",
                model_sha256=model_sha256,
            )
        )

    def _write(self, event: Event) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line(event))


def _line(event: Event) -> str:
    return json.dumps(to_record(event)) + "\n"
