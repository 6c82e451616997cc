"""Which schemes deploy, with the simulator's bits, and through kill -9: by real processes.

`python -m tests.live.parity` prints the table; `--kills 10` kills ten processes in each run,
`--only d2 safa` tries some, `--refused` only tells who does not deploy, and why. An asynchronous
run is compared with the simulator's repetition of the recorded order.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from sdfeel.core.errors import InputError
from sdfeel.core.tolerance import YES
from sdfeel.deploy.chaos import Outcome, disturbed
from sdfeel.deploy.deployable import check_deployable
from sdfeel.experiment.build import prepare
from sdfeel.experiment.loading import load
from sdfeel.experiment.schema import Experiment
from sdfeel.run.drive import fingerprint
from sdfeel.schemes import SCHEMES

SETTINGS = (
    *("network.clients=6", "network.servers=3", "data.classes_per_client=5"),
    *("model.name=logistic", "training.engine=loop", "training.learning_rate=0.1"),
    *("devices.spread=4",),
)
DRAWN = ("sampling.share=0.5",)
UNIFORM = ("compression.uplink=uniform", "compression.bits=6")
CROWD = ("network.clients=9", "network.servers=2")  # clusters in which a few can be outvoted
NEAREST = ("robust.cluster=trimmed-mean", "robust.before=nearest-neighbours")
LIARS = ("attack.clients=2", "robust.cluster=median", *CROWD)
FALSE_SERVER = ("attack.kind=scaling", "attack.servers=1", "network.graph=complete")
MASKS = ("privacy.secure_aggregation=true",)
MLP = ("model.name=mlp", "model.options={ hidden = 8 }")
OPTIONS = {
    "async-sd-feel": ("scheme.staleness=hearsay",),
    "feel": ("scheme.scheduled=3",),
    "fedcs": ("scheme.fraction=0.5", "scheme.alpha=2"),
    "fedmes": ("network.overlap=2",),
    "joint": ("scheme.divergence=0.05", "scheme.max_wait=3"),
    "multi-level": ("scheme.tau2=2",),
    "fogfl": ("scheme.tau2=2",),
    "adaptive": ("scheme.tau_max=4",),
}


@dataclass(frozen=True)
class Case:
    """A row of the table."""

    name: str
    scheme: str
    options: tuple[str, ...] = ()
    iterations: int = 30

    def experiment(self) -> Experiment:
        own = (f"scheme.name={self.scheme}", f"training.iterations={self.iterations}")
        return load(None, [*SETTINGS, *own, *OPTIONS.get(self.scheme, ()), *self.options])


CASES = (
    *(Case(name, name) for name in SCHEMES),
    *(
        Case(f"{name}, half of the clients", name, DRAWN)
        for name, kind in SCHEMES.items()
        if kind.tolerates.sampling == YES
    ),
    Case("sd-feel, half of the clients, of 6 bits", "sd-feel", (*DRAWN, *UNIFORM)),
    Case("sd-feel, half of the clients, masked", "sd-feel", (*DRAWN, *CROWD, *MASKS)),
    Case("sd-feel, updates of 6 bits", "sd-feel", UNIFORM),
    Case("fednova, updates of 6 bits", "fednova", UNIFORM),
    Case("fedsa, the largest 5 % of updates", "fedsa", ("compression.uplink=top-k",)),
    Case("async-sd-feel, updates of 6 bits", "async-sd-feel", UNIFORM),
    Case("fedasync, updates of 6 bits", "fedasync", UNIFORM),
    Case("sd-feel, everything of 6 bits", "sd-feel", (*UNIFORM, "compression.backhaul=uniform")),
    Case("async-sd-feel, exchanges of 8 bits", "async-sd-feel", ("compression.backhaul=uniform",)),
    Case("fedmes, updates of 6 bits", "fedmes", UNIFORM),
    *(
        Case(f"sd-feel, {kind} at the servers", "sd-feel", (f"server.optimizer={kind}",))
        for kind in ("momentum", "adam", "yogi", "adagrad", "quasi-global")
    ),
    Case("d2, adam at the servers", "d2", ("server.optimizer=adam",)),
    Case("fedavg, momentum at the cloud", "fedavg", ("server.optimizer=momentum",)),
    *(
        Case(f"sd-feel, {name}", "sd-feel", (f"network.mixing={name}", "network.graph=complete"))
        for name in ("one-peer-exponential", "base-2", "epidemic-1", "pairwise")
    ),
    *(
        Case(f"sd-feel, {rule} of clients", "sd-feel", (f"robust.cluster={rule}", *CROWD))
        for rule in ("median", "trimmed-mean", "geometric-median", "multi-krum", "centred-clipping")
    ),
    Case("sd-feel, neighbours mixed, then trimmed", "sd-feel", (*NEAREST, *CROWD)),
    Case("fednova, median of 6 bits", "fednova", (*UNIFORM, "robust.cluster=median")),
    Case("async-sd-feel, median of clients", "async-sd-feel", ("robust.cluster=median", *CROWD)),
    *(
        Case(f"sd-feel, {rule}", "sd-feel", (f"robust.servers={rule}", "network.graph=complete"))
        for rule in ("clipped-gossip", "cs+")
    ),
    *(
        Case(f"sd-feel, two clients lie: {kind}", "sd-feel", (*LIARS, f"attack.kind={kind}"))
        for kind in ("sign-flip", "label-flip", "backdoor")
    ),
    Case("fednova, a liar of 6 bits", "fednova", (*UNIFORM, *LIARS, "attack.kind=scaling")),
    Case("sd-feel, a server lies", "sd-feel", (*FALSE_SERVER, "robust.servers=cs+")),
    Case("sd-feel, a server lies in hops", "sd-feel", (*FALSE_SERVER, "scheme.alpha=2")),
    Case("sd-feel, sums under masks", "sd-feel", MASKS),
    Case("hierfavg, sums under masks", "hierfavg", MASKS),
    Case("sd-feel, the last layer stays", "sd-feel", (*MLP, "personal.method=fedper")),
    Case("fedavg, fedrep", "fedavg", (*MLP, "personal.method=fedrep")),
    Case("async-sd-feel, ditto", "async-sd-feel", ("personal.method=ditto",)),
    Case("free-tracking, the last layer stays", "free-tracking", (*MLP, "personal.method=fedper")),
    Case("sd-feel, fedper of 6 bits", "sd-feel", (*MLP, *UNIFORM, "personal.method=fedper")),
    Case("fedmes, ditto", "fedmes", ("personal.method=ditto",)),
    # With latency.late=drop the real clock decides, and no simulation can be its twin.
    Case(
        "sd-feel, by chances",
        "sd-feel",
        ("latency.late=drop-unbiased", "latency.deadline_seconds=9"),
    ),
    Case("async-sd-feel, the global counter", "async-sd-feel", ("scheme.staleness=global",)),
)


def refusal(case: Case) -> str | None:
    """Why a case does not deploy."""
    try:
        ready = prepare(case.experiment())
    except InputError as error:
        return str(error)
    try:
        check_deployable(ready)
    except InputError as error:
        return str(error)
    finally:
        ready.engine.close()
    return None


def simulated(case: Case, rounds: int) -> str:
    """The fingerprint of the simulator's model after this many rounds."""
    ready = prepare(case.experiment())
    simulation = ready.simulation()
    for _ in islice(simulation, rounds):
        pass
    ready.engine.close()
    return fingerprint(simulation.model())


def deployed(case: Case, kills: int, seed: int = 0) -> tuple[Outcome, bool]:
    """Run a case on real processes: how it went, and whether its model is the simulator's."""
    with tempfile.TemporaryDirectory(prefix="parity-") as directory:
        outcome = disturbed(case.name, case.experiment(), Path(directory) / "run", kills, seed)
    expected = outcome.replayed_sha256 or simulated(case, outcome.rounds)
    return outcome, outcome.model_sha256 == expected


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=0, help="processes killed in each run")
    parser.add_argument("--only", nargs="*", default=[], help="names of cases")
    parser.add_argument("--refused", action="store_true", help="start no processes")
    parser.add_argument("--seed", type=int, default=0, help="of the first case's kills")
    args = parser.parse_args()
    chosen = [case for case in CASES if not args.only or case.name in args.only]
    print("| scheme | deploys | rounds | kills (edge + client) | model | equals the simulator |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    wrong = 0
    for n, case in enumerate(chosen):
        reason = refusal(case)
        if reason is not None or args.refused:
            print(f"| {case.name} | {'yes' if reason is None else f'no: {reason}'} | | | | |")
            continue
        outcome, same = deployed(case, args.kills, args.seed + n)
        kills = f"{outcome.kills['edge']} + {outcome.kills['client']}"
        how = " (repeated in its order)" if outcome.replayed_sha256 else ""
        print(
            f"| {case.name} | yes | {outcome.rounds} | {kills} | {outcome.model_sha256[:12]} "
            f"| {'yes' if same else 'NO'}{how} |",
            flush=True,
        )
        wrong += not same
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
