"""Write a table of what every scheme computes in small runs, or compare two such tables.

    PYTHONPATH=<tree>/src python tools/hashes.py --out table.json
    python tools/hashes.py --compare old.json new.json

After a change that must keep the bits, no row differs. A row names the scheme, the network and the
variant, and contains the first digits of the final model's hash, the virtual seconds, the bytes and
the joules. The table also lists what is refused. It takes about two minutes on one core.
"""

import argparse
import hashlib
import importlib
import json
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
MOST_ROUNDS = 300  # a longer run is stopped, and its row says so
TOLERANCE = 1e-12  # of seconds and joules, whose sums may be formed in another order
COUNTED = ("hash", "bytes", "rounds", "iterations")
MEASURED = ("seconds", "joules")

# Modules may move: the first home that exists is used, so that older trees work, too.
HOMES = {
    "load": ("sdfeel.experiment.loading", "sdfeel.experiment.schema", "sdfeel.run.experiment"),
    "template": ("sdfeel.experiment.loading", "sdfeel.experiment.schema", "sdfeel.run.experiment"),
    "start": ("sdfeel.run.session",),
    "resume": ("sdfeel.run.session",),
    "SdfeelError": ("sdfeel.core.errors",),
    "SCHEMES": ("sdfeel.schemes",),
    "LocalDeployment": ("sdfeel.deploy.local", "sdfeel.run.deploy.local"),
    "verify": ("sdfeel.deploy.verify",),
    "audited": ("sdfeel.deploy.status",),
    "digest_of": ("sdfeel.deploy.files", "sdfeel.run.deploy.files"),
    "Envelope": ("sdfeel.live.transport.envelope",),
    "Policy": ("sdfeel.live.edge.policy", "sdfeel.live.policy"),
    "Who": ("sdfeel.live.protocol",),
    "Village": ("tests.live.village",),
    "network": ("tests.live.village",),
    "simulated": ("tests.live.village",),
}

# On the first network, schemes have their defaults; on the others, these.
OPTIONS = {
    "sd-feel": ("tau1=3", "tau2=2", "alpha=2"),
    "async-sd-feel": ("theta_min=3", 'psi="exponential"', "balanced=true"),
    "hierfavg": ("tau1=3", "tau2=2"),
    "fedavg": ("tau1=4", "participants=5"),
    "feel": ("tau1=4", "scheduled=2"),
    "fogfl": ("tau1=3", "tau2=2"),
    "fedmes": ("tau1=4", "overlap_weight=2.0"),
    "multi-level": ("tau1=3", "tau2=2"),
    "fedasync": ("tau1=4", 'psi="hinge"', "psi_b=2.0"),
    "fedsa": ("tau1=4", "quota=3"),
    "safa": ("tau1=4", "fraction=0.4", "tolerance=2", "crash_chance=0.1"),
    "fednova": ("theta_min=3",),
    "fedcs": ("tau1=4", "alpha=2", "round_seconds=0.014"),
    "adaptive": ("alpha=2", "every=2", "tau_max=8", "phi=0.025", "budget=1.0"),
    "joint": ("tau1=4", "alpha=2", "worth=0.7"),
    "d2": ("tau1=2",),
}
# Seconds until a client is late: chosen so that some clients of each scheme are.
CLOUD = {"fedavg": 0.015, "fedasync": 0.015, "fedsa": 0.015, "safa": 0.015, "fednova": 0.018}
DEADLINES = {**dict.fromkeys(OPTIONS, 0.01), **CLOUD, "d2": 0.0062, "adaptive": 0.0058}
SHORTER = {"path": 0.85}  # its model is smaller

COMMON = (
    "training.iterations=40",
    "training.engine=loop",
    "evaluation.every=1000",
    "evaluation.train_examples=50",
    "evaluation.test_examples=50",
    "checkpoint.every_seconds=3600",
    "devices.gflops=0.0006",  # then a step takes about a millisecond, and an upload four
)
NETWORKS = {
    "ring": (
        "network.clients=12",
        "network.servers=4",
        "model.name=logistic",
        "devices.spread=2",
    ),
    "star": (
        "network.clients=9",
        "network.servers=3",
        "network.graph=star",
        "data.partition=iid",
        "model.name=logistic",
        "radio.fading=rayleigh",
        "radio.correlation=0.5",
        "latency.consensus=true",
    ),
    "complete": (
        "network.clients=12",
        "network.servers=4",
        "network.graph=complete",
        "network.mixing=metropolis",
        "data.partition=dirichlet",
        "model.name=logistic",
        "training.momentum=0.5",
        "devices.spread=4",
        "latency.downlink=true",
    ),
    "path": (
        "network.clients=10",
        "network.servers=3",
        "network.graph=path",
        "network.mixing=size-weighted",
        "network.imbalance=1",
        "network.overlap=1",
        "data.partition=shards",
        "model.name=mlp",
        "model.options.hidden=8",
        "training.proximal=0.1",
        "devices.spread=3",
    ),
}
SCHEDULES = {
    "round": "round 2 server 1 down\nround 3 cloud down\nround 4 cloud up\nround 5 link 0 1 down\n"
    "round 6 server 1 up\nround 8 link 0 1 up\n",
    "second": "second 0.01 server 1 down\nsecond 0.02 cloud down\nsecond 0.03 server 1 up\n"
    "second 0.04 link 0 1 down\nsecond 0.05 cloud up\nsecond 0.06 link 0 1 up\n",
}
SECONDS = ("star", "path")  # networks whose schedule counts in seconds
TOP_K_UP = ("ring", "path")  # networks whose clients send the largest changes


def variants(scheme: str, network: str, files: Path) -> Iterator[tuple[str, Sequence[str]]]:
    """The variants of a run, one after another."""
    seconds = DEADLINES[scheme] * SHORTER.get(network, 1.0)
    deadline = f"latency.deadline_seconds={seconds:.5f}"
    sparse = network in TOP_K_UP
    up = f"compression.uplink={'top-k' if sparse else 'uniform'}"
    across = f"compression.backhaul={'uniform' if sparse else 'top-k'}"
    sizes = ("compression.share=0.1", "compression.bits=6")
    chances = ("link_chance=0.7", "server_up_seconds=0.05", "server_down_seconds=0.02")
    yield "plain", ()
    yield "drop", ("latency.late=drop", deadline)
    yield "drop-unbiased", ("latency.late=drop-unbiased", deadline)
    yield "equalise", ("latency.late=equalise",)
    yield "outages by chance", tuple(f"network.{each}" for each in chances)
    kind = "second" if network in SECONDS else "round"
    yield "outages by schedule", (f"network.changes={files / kind}",)
    yield "uplink", (up, *sizes)
    yield "backhaul", (across, *sizes)
    yield "uplink and backhaul", (up, across, *sizes)


def found(name: str) -> Any:
    """An object of the package, wherever it lives in this tree."""
    for home in HOMES[name]:
        try:
            module = importlib.import_module(home)
        except ModuleNotFoundError:
            continue
        if hasattr(module, name):
            return getattr(module, name)
    raise SystemExit(f"no {name} in {', '.join(HOMES[name])}: add its new home to HOMES")


def outcome(settings: Sequence[str], directory: Path) -> Row:
    """What one run computes, or why it does not."""
    rounds = 0
    last: Any = None
    try:
        session = found("start")(found("load")(None, settings), directory)
        for event in session:
            kind = type(event).__name__
            if kind in ("Round", "Finished"):
                last = event
            rounds += kind == "Round"
            if rounds == MOST_ROUNDS:
                session.stop()
    except found("SdfeelError") as error:
        word = f"stopped in round {rounds + 1}" if directory.exists() else "refused"
        return {"hash": f"{word}: {_first_sentence(error, directory.parent)}"}
    except Exception as error:  # a table with a gap is better than none
        return {"hash": f"failed: {type(error).__name__}: {_first_sentence(error, directory)}"}
    ended = getattr(last, "model_sha256", None)
    return {
        "hash": ended[:12] if ended else f"endless: {_state(directory)}",
        "seconds": last.seconds,
        "bytes": last.bytes,
        "joules": last.joules,
        "rounds": last.number,
        "iterations": last.iterations,
    }


def _first_sentence(error: Exception, directory: Path) -> str:
    lines = str(error).replace(f"{directory}/", "").splitlines() or [""]
    return lines[0].split(". ")[0].split(": ")[0]


def _state(directory: Path) -> str:
    """The servers' models in the checkpoint of a run that was stopped."""
    from safetensors.numpy import load_file

    models = load_file(directory / "checkpoint.safetensors")["models"]
    return hashlib.sha256(models.tobytes()).hexdigest()[:12]


def rows(schemes: Sequence[str], networks: Iterable[str]) -> Iterator[Row]:
    """The table, one run after another."""
    with tempfile.TemporaryDirectory() as place:
        files = Path(place)
        for kind, text in SCHEDULES.items():
            (files / kind).write_text(text)
        for scheme in schemes:
            for network in networks:
                own = () if network == "ring" else OPTIONS[scheme]
                basis = (
                    *COMMON,
                    *NETWORKS[network],
                    f"scheme.name={scheme}",
                    *(f"scheme.{option}" for option in own),
                )
                for variant, more in variants(scheme, network, files):
                    run = files / f"{scheme} {network} {variant}"
                    begin = time.perf_counter()
                    row = outcome((*basis, *more), run)
                    spent = round(time.perf_counter() - begin, 3)
                    yield {
                        "scheme": scheme,
                        "network": network,
                        "variant": variant,
                        **row,
                        "real_seconds": spent,
                    }


def circumstances() -> dict[str, str]:
    """What the bits may depend on."""
    import torch

    import sdfeel
    from sdfeel.engine.arithmetic import arithmetic

    torch.set_num_threads(1)
    return {
        "sdfeel": sdfeel.__version__,
        "torch": str(torch.__version__),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "arithmetic": arithmetic(),
    }


def write(path: Path, made: dict[str, str], table: Iterable[Row]) -> None:
    """One row per line, so that `diff` and `grep` are useful, too."""
    lines = ",\n".join(json.dumps(row) for row in table)
    path.write_text(f'{{"made": {json.dumps(made)},\n"rows": [\n{lines}\n]}}\n')


def different(old: Row, new: Row) -> list[str]:
    """The columns in which two rows differ."""
    names = [name for name in COUNTED if old.get(name) != new.get(name)]
    for name in MEASURED:
        pair = (old.get(name, 0.0), new.get(name, 0.0))
        if not math.isclose(*pair, rel_tol=TOLERANCE, abs_tol=0.0):
            names.append(name)
    return names


def compare(old: Path, new: Path) -> int:
    """Print what differs; return 1 if anything does. A refusal in other words is not a
    difference."""
    before, after = (json.loads(path.read_text()) for path in (old, new))
    for name, value in before["made"].items():
        if after["made"].get(name) != value:
            print(f"note: {name} was {value}, is {after['made'].get(name)}")
    tables = [_keyed(table["rows"]) for table in (before, after)]
    both = [key for key in tables[0] if key in tables[1]]
    counts: Counter[str] = Counter()
    for key in both:
        one, two = (table[key] for table in tables)
        names = [] if _both_refused(one, two) else different(one, two)
        if names:
            told = ", ".join(f"{n} {_short(one, n)} -> {_short(two, n)}" for n in names)
            print(f"{' / '.join(key)}: {told}")
            counts[key[0]] += 1
    print(f"{sum(counts.values())} of {len(both)} rows differ")
    for path, table in zip((old, new), tables, strict=True):
        if len(table) > len(both):
            print(f"  {len(table) - len(both)} rows are in {path} alone")
    for scheme, count in counts.items():
        print(f"  {scheme}: {count}")
    return 1 if counts else 0


def _both_refused(one: Row, two: Row) -> bool:
    return all(row["hash"].startswith("refused") for row in (one, two))


def _keyed(table: list[Row]) -> dict[tuple[str, str, str], Row]:
    return {(row["scheme"], row["network"], row["variant"]): row for row in table}


def _short(row: Row, name: str) -> str:
    value = row.get(name)
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="write the table of this tree here")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("OLD", "NEW"))
    parser.add_argument("--schemes", default=",".join(OPTIONS), metavar="NAME,...")
    parser.add_argument("--networks", default=",".join(NETWORKS), metavar="NAME,...")
    asked = parser.parse_args()
    if asked.compare:
        return compare(*asked.compare)
    if asked.out is None:
        parser.error("give --out FILE or --compare OLD NEW")
    begin, made = time.perf_counter(), circumstances()
    table = list(rows(asked.schemes.split(","), asked.networks.split(",")))
    write(asked.out, made, table)
    refused = sum(not row.get("rounds") for row in table)
    spent = time.perf_counter() - begin
    print(f"{len(table)} rows, {refused} of them without a model, in {spent:.0f} s: {asked.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
