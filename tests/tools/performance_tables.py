"""The tables of docs/performance.md, made from what is kept in benchmarks/measured.json.

A measurement is what `performance_page` keeps of a step: its commands, its date, the machine, and
the rows that the commands printed. A number that was not measured is None, and shown as a dash.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Measured = Mapping[str, Any]
Row = Mapping[str, Any]
SETS = {"avx2": "AVX2", "avx512": "AVX-512"}
WORKS = {
    "mnist-cnn": "MNIST CNN",
    "mlp": "MLP 784-200-10",
    "lenet": "LeNet-5, 3x32x32",
    "cifar-cnn": "CIFAR CNN",
    "evaluation": "evaluation, MNIST CNN",
}
PEERS = {
    "flower": "Flower, simulation",
    "pfl": "pfl-research",
    "fedjax": "FedJAX",
    "jax": "plain JAX",
}
NOT_MEASURED = "*Not measured yet.*"


def block(name: str, kept: Mapping[str, Measured]) -> str:
    """What stands between the markers of a table: what it is of, and the table."""
    if name == "goals":
        return goals(kept)
    if name not in kept:
        return NOT_MEASURED
    own = kept[name]
    return f"{caption(own)}\n\n{TABLES[name](own['rows'])}"


def caption(own: Measured) -> str:
    """The command, the date, the machine, and what else it did."""
    first, *more = dict.fromkeys(own["commands"])
    others = f" and {len(more)} more (in `benchmarks/measured.json`)" if more else ""
    has, code = SETS.get(own["has"], own["has"]), SETS.get(own["code"], own["code"])
    fewer = f", native's code for {code} alone" if code != has else ""
    peaks = {row["peak"] for row in own["rows"] if row.get("way") == "native" and "peak" in row}
    peak = "".join(f"; the peak is {each / 1e9:.0f} GFLOP/s" for each in peaks)
    cpu = f"{own['cpu']} with {has}{fewer}" if own["cpu"] else "a CPU that was not noted"
    machine = f"{own['cores']} cores, {cpu}"
    return f"`{first}`{others}, {own['date']}, {machine}, {own['load']}{peak}:"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """
    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    lines = [list(titles), ["---"] * len(titles), *map(list, rows)]
    return "\n".join("|".join(["", *(f" {c} " if c else " " for c in line), ""]) for line in lines)


def shown(number: float | None, digits: int = 0) -> str:
    """
    >>> shown(1234.56), shown(0.1234, 2), shown(None)
    ('1,235', '0.12', '-')
    """
    return "-" if number is None else f"{number:,.{digits}f}"


def significant(number: float | None) -> str:
    """Two digits of small numbers, whole ones of large.

    >>> significant(0.0712), significant(2.61), significant(1234.5), significant(17.3)
    ('0.07', '2.6', '1,234', '17')
    """
    if number is None:
        return "-"
    return shown(number, 2 if number < 1 else 1 if number < 10 else 0)


def engines(rows: Sequence[Row]) -> str:
    """Ways by work; the limit itself is left out."""
    found, before = [], ""
    for row in rows:
        if row["way"] == "limit":
            continue
        name = WORKS[row["work"]]
        found.append(
            [
                "" if name == before else name,
                row["way"],
                shown(row["samples_per_second"]),
                shown(row["of_loop"], 2),
                shown(100 * row["of_peak"], 1),
                shown(100 * row["of_needed"], 1),
            ]
        )
        before = name
    return table(["work", "way", "samples/s", "x loop", "% of peak", "% needed"], found)


def asynchronous(rows: Sequence[Row]) -> str:
    titles = ["scheme", "samples/s", "of sd-feel's", "by processor time"]
    return table(
        titles,
        [
            [r["scheme"], shown(r["samples"]), shown(r["of_sd_feel"], 2), shown(r["by_cpu"], 2)]
            for r in rows
        ],
    )


def events(rows: Sequence[Row]) -> str:
    """Every time that was measured, by scheme."""
    times: dict[tuple[str, int, int], list[str]] = {}
    for row in rows:
        where = row["scheme"], row["clients"], row["servers"]
        times.setdefault(where, []).append(shown(1000 * row["round"], 2))
    titles = ["scheme", "clients", "servers", "processor time of an event, ms"]
    return table(
        titles,
        [[who, shown(n), shown(m), ", ".join(found)] for (who, n, m), found in times.items()],
    )


def growth(rows: Sequence[Row]) -> str:
    titles = ["scheme", "clients", "servers", "rounds", "prepare, s", "a round, ms", "MB"]
    return table(
        titles,
        [
            [
                f"{row['scheme']}, events" if "async" in row["scheme"] else row["scheme"],
                *(shown(row[key]) for key in ("clients", "servers", "rounds")),
                *_grown(row),
            ]
            for row in rows
        ],
    )


def crowds(rows: Sequence[Row]) -> str:
    titles = ["scheme", "clients", "drawn", "servers", "graph", "prepare, s", "a round, ms", "MB"]
    return table(
        titles,
        [
            [
                row["scheme"],
                shown(row["clients"]),
                "100" if row["servers"] == 1 else f"{100 * row['share']:g} %",
                shown(row["servers"]),
                row["graph"] if row["servers"] > 1 else "",
                *_grown(row),
            ]
            for row in rows
        ],
    )


def _grown(row: Row) -> list[str]:
    """What a network takes."""
    a_round = None if row["round"] is None else 1000 * row["round"]
    return [significant(row["prepare"]), significant(a_round), shown(row["megabytes"])]


def checkpoints(rows: Sequence[Row]) -> str:
    titles = ["scheme", "clients", "servers", "the whole state", "a later checkpoint"]
    return table(
        titles,
        [
            [
                row["scheme"],
                shown(row["clients"]),
                shown(row["servers"]),
                *(
                    f"{significant(row[f'{which}_megabytes'])} MB, "
                    f"{shown(row[f'{which}_milliseconds'])} ms"
                    for which in ("whole", "later")
                ),
            ]
            for row in rows
        ],
    )


def ray(rows: Sequence[Row]) -> str:
    """Processor time of a round next to native's, and examples a second next to one node's."""
    cpu = {row["way"]: row["cpu"] for row in rows if "cpu" in row}
    speed = {row["way"]: row["speed"] for row in rows if "speed" in row}
    ways = [*cpu, *speed]
    return table(
        ["way", "processor time of a round, ms", "of native's", "examples/s", "of one node's"],
        [
            [
                way,
                shown(1000 * cpu[way]) if way in cpu else "",
                shown(cpu[way] / cpu["native"], 2) if way in cpu else "",
                shown(speed.get(way)) if way in speed else "",
                shown(speed[way] / speed["one node"], 2) if way in speed else "",
            ]
            for way in ways
        ],
    )


def memory(rows: Sequence[Row]) -> str:
    return table(
        ["run", "engine", "peak, MB"],
        [
            [f"`{' '.join(row['settings'])}`", row["engine"], shown(row["megabytes"])]
            for row in rows
        ],
    )


def profile(rows: Sequence[Row]) -> str:
    """Shares of each run's seconds."""
    phases = [phase for phase in rows[0]["seconds"] if phase != "caller"]
    shares = [
        {phase: seconds / sum(row["seconds"].values()) for phase, seconds in row["seconds"].items()}
        for row in rows
    ]
    return table(
        ["phase", *(f"run {n + 1}, %" for n in range(len(rows)))],
        [[phase, *(shown(100 * each[phase], 1) for each in shares)] for phase in phases],
    )


def peers(rows: Sequence[Row]) -> str:
    return table(
        ["", "version", "samples/s", "native is faster"],
        [
            [
                peer(row["name"]),
                row.get("version", ""),
                shown(row["samples_per_second"]) if "samples_per_second" in row else row["reason"],
                f"{row['our_best_is_faster']:.1f}x" if "our_best_is_faster" in row else "",
            ]
            for row in rows
        ],
    )


def peer(name: str) -> str:
    """
    >>> peer("jax-2-devices"), peer("sdfeel native")
    ('plain JAX, 2 devices', 'sdfeel native')
    """
    first, *rest = name.split("-")
    return ", ".join([PEERS.get(first, first), *([" ".join(rest)] if rest else [])])


TABLES: dict[str, Callable[[Sequence[Row]], str]] = {
    "engines": engines,
    "engines-avx2": engines,
    "async": asynchronous,
    "events": events,
    "growth": growth,
    "crowds": crowds,
    "checkpoints": checkpoints,
    "ray": ray,
    "memory": memory,
    "profile": profile,
    "peers": peers,
    "peers-all": peers,
}


def goals(kept: Mapping[str, Measured]) -> str:
    """Each goal, with what the other tables say about it."""
    names = [name for name in ("engines", "engines-avx2") if name in kept]
    titles = [f"with {SETS.get(kept[name]['code'], kept[name]['code'])}" for name in names]
    columns = [_by_engines(kept[name]["rows"]) for name in names]
    rows = [[goal, *(column[goal] for column in columns)] for goal in columns[0]]
    first = next((name for name in names if kept[name]["code"] == kept[name]["has"]), names[0])
    for goal, verdict in _by_others(kept).items():
        rows.append([goal, *(verdict if name == first else "" for name in names)])
    return table(["goal", *titles], rows)


def _by_engines(rows: Sequence[Row]) -> dict[str, str]:
    speed = {(row["work"], row["way"]): row["samples_per_second"] for row in rows}
    needed = {row["work"]: row["of_needed"] for row in rows if row["way"] == "native"}

    def ratio(work: str, way: str, other: str, goal: float) -> str:
        return _verdict(speed[work, way] / speed[work, other], goal)

    cifar = max(speed["cifar-cnn", way] for way in ("loop", "parallel", "native"))
    parallel = [row["of_loop"] for row in rows if row["way"] == "parallel"]
    several = f"{min(parallel):.1f} to {max(parallel):.1f} times"
    found = {
        "MNIST CNN: native 8 times parallel": ratio("mnist-cnn", "native", "parallel", 8),
        "MLP: native 4 times parallel": ratio("mlp", "native", "parallel", 4),
        "LeNet-5: native 6 times parallel": ratio("lenet", "native", "parallel", 6),
        "CIFAR CNN: the best engine 1.35 times naive": _verdict(
            cifar / speed["cifar-cnn", "naive"], 1.35, digits=2
        ),
        "evaluation: native 6 times naive": ratio("evaluation", "native", "naive", 6),
        "parallel: 1.9 times loop on two cores": several + _missed(min(parallel), 1.9),
    }
    for work, goal in SHARES.items():
        name = WORKS[work].split(",")[0].split(" 784")[0]
        share = 100 * needed[work]
        found[f"{name}: {goal} % needed"] = f"{share:.0f} %{_missed(share, goal)}"
    return found


SHARES = {"mnist-cnn": 55, "mlp": 55, "lenet": 55, "cifar-cnn": 60, "evaluation": 80}  # goals


def _by_others(kept: Mapping[str, Measured]) -> dict[str, str]:
    found = {}
    if "peers" in kept:
        rows = [row for row in kept["peers"]["rows"] if "our_best_is_faster" in row]
        others = [row for row in rows if not row["name"].startswith("sdfeel")]
        closest = min(others, key=lambda row: row["our_best_is_faster"])
        verdict = _verdict(closest["our_best_is_faster"], 20)
        found["MNIST CNN: native 20 times the fastest peer"] = (
            f"{verdict} ({peer(closest['name'])})"
        )
    for row in kept["async"]["rows"] if "async" in kept else ():
        if row["scheme"] in ("async-sd-feel", "fedasync"):
            verdict = _verdict(row["of_sd_feel"], 0.9, digits=2)
            found[f"{row['scheme']}: 0.9 times sd-feel's samples/s"] = verdict
    return found


def _verdict(ratio: float, goal: float, digits: int = 1) -> str:
    return f"{ratio:.{digits}f} times{_missed(ratio, goal)}"


def _missed(value: float, goal: float) -> str:
    return "" if value >= goal else ", missed"
