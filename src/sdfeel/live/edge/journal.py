"""A node's own event log: the same lines as a simulated run's, from its durable records."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdfeel.core.decide import mean_iterations
from sdfeel.core.events import Event, Finished, Round, Started, Warned, to_record
from sdfeel.core.run_files import EVENTS
from sdfeel.live.federation import Federation

Record = Mapping[str, Any]


@dataclass
class RoundTally:
    """Turns servers' records into round events, numbered and timed from the start of the run."""

    servers: int
    bytes: int = 0
    steps: dict[int, float] = field(default_factory=dict)  # local iterations of each server
    number: int = 0
    seconds: float = 0.0

    def keep(self, servers: Collection[int]) -> None:
        """Count only these servers from now on: the others have left the network."""
        self.servers = len(servers)
        self.steps = {d: steps for d, steps in self.steps.items() if d in servers}

    def round(self, records: Mapping[int, Record]) -> Round:
        """The next round, finished by these servers."""
        slowest = max(records.values(), key=elapsed)
        awaited = max(records.values(), key=lambda each: each["compute"] + each["upload"])
        if not self.number:  # records of earlier rounds may have been deleted
            self.number = max(int(record["number"]) for record in records.values()) - 1
            self.bytes = sum(int(each["total"]) - int(each["bytes"]) for each in records.values())
        self.number += 1
        self.seconds = max(elapsed(slowest), self.seconds)
        self.bytes += sum(int(record["bytes"]) for record in records.values())
        self.steps |= {d: float(record["iterations"]) for d, record in records.items()}
        who = {client for record in records.values() for client in record["steps"]}
        return Round(
            number=self.number,
            lane=tuple(sorted(records)),
            iterations=mean_iterations(sum(self.steps.values()), self.servers),
            seconds=self.seconds,
            bytes=self.bytes,
            joules=0.0,
            clients=len(who),
            phases={name: float(awaited[name]) for name in ("compute", "upload", "mix")},
            mixed=tuple(slowest["mixed"]),
            figures=dict(slowest.get("figures", {})),
        )


def elapsed(record: Record) -> float:
    """Seconds from a server's first round to the end of this one, by its own clock.

    Clocks of different servers are never compared: one may be an hour ahead.
    """
    return float(record.get("elapsed", record["ended"] - record["first"]))


def notices(before: Record | None, record: Record) -> Iterator[str]:
    """Sentences on who came and who went between two records of a server."""
    me, number = f"edge-{record['server']}", record["k"] + 1
    for key, gone, back in (
        ("missing", f"{me} goes on without client-%d", f"client-%d is back at {me}"),
        ("away", f"{me} goes on without edge-%d", f"edge-%d is back at {me}"),
        ("guests", f"client-%d works for {me}, its own server is away", f"client-%d leaves {me}"),
    ):
        was = set() if before is None else set(before.get(key, ()))
        now = set(record.get(key, ()))
        yield from (f"round {number}: {gone % n}" for n in sorted(now - was))
        left = was - now
        if key == "missing":
            left = {n for n in left if str(n) in record["steps"]}  # not a guest that went home
        yield from (f"round {number}: {back % n}" for n in sorted(left))


def line_of(record: Record) -> str:
    """One readable line per round."""
    parts = [f"round {record['k'] + 1}: {len(record['steps'])} clients"]
    parts += [f"{name} {record[name]:.2f} s" for name in ("compute", "upload", "mix")]
    if record["missing"]:
        parts.append(f"without clients {', '.join(map(str, record['missing']))}")
    if record["away"]:
        parts.append(f"without servers {', '.join(map(str, record['away']))}")
    if record["guests"]:
        parts.append(f"with guests {', '.join(map(str, record['guests']))}")
    return ", ".join(parts)


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
        seed=federation.decisions.seed,
        zeta=net.zeta,
        edges=tuple(net.edges),
        home=tuple(net.home.tolist()),
        clock="real",
    )


class Journal:
    """One server's events.jsonl. Every start writes it anew from the records, which are the truth.

    Lines about rounds whose records were deleted stay as they are.
    """

    def __init__(
        self, directory: Path, federation: Federation, server: int, records: Iterable[Record]
    ) -> None:
        self._path, self._server = directory / EVENTS, server
        self._tally = RoundTally(servers=1)
        why = f"deployed: edge server {server}"
        lines = [_line(started(federation, "clients", why))]
        self._before: Record | None = None
        for record in records:
            if self._before is None and record["number"] > 1:
                lines = _before(self._path, record["number"])
            lines += map(_line, self._events(record))
        self._path.write_text("".join(lines), encoding="utf-8")

    def append(self, record: Record) -> None:
        for event in self._events(record):
            self._write(event)

    def _events(self, record: Record) -> list[Event]:
        told = [Warned(text) for text in notices(self._before, record)]
        self._before = record
        return [*told, self._tally.round({self._server: record})]

    def finish(self, model_sha256: str) -> None:
        tally = self._tally
        self._write(
            Finished(
                number=tally.number,
                iterations=int(tally.steps.get(self._server, 0)),
                seconds=tally.seconds,
                bytes=tally.bytes,
                joules=0.0,
                reason=(self._before or {}).get("over") or "all iterations done",
                model_sha256=model_sha256,
            )
        )

    def _write(self, event: Event) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line(event))


def _line(event: Event) -> str:
    return json.dumps(to_record(event)) + "\n"


def _before(path: Path, number: int) -> list[str]:
    """The lines of a log before a round."""
    kept: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            break  # the end was lost in a crash
        if event["event"] == "round" and event["number"] >= number:
            break
        kept.append(f"{line}\n")
    return kept
