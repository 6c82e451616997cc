"""The options that are combined: one factor per question, one value per answer.

A value is a bundle of settings, as `sdfeel run --set` takes them. The first value of a factor is
its default and sets nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from sdfeel.data import catalog
from sdfeel.data.federated import Dataset, Federated
from sdfeel.experiment.loading import load
from sdfeel.experiment.schema import Experiment

Settings = tuple[str, ...]
Factors = Mapping[str, Mapping[str, Settings]]
Choice = dict[str, str]  # factor -> value; factors that are not named have their default

CLIENTS, SERVERS = 7, 4  # clusters of 2, 2, 2 and 1: no two rules for weights agree

# Seven clients, of whom the fastest computes three times as fast as the slowest. A step takes
# about as long as a quarter of an upload, and a round about 8 milliseconds.
BASE: Settings = (
    "model.name=logistic",
    "training.iterations=12",
    "training.batch_size=5",
    "training.learning_rate=0.05",
    "training.engine=loop",
    "training.workers=2",
    "latency.operations=10_000_000",
    "latency.client_cloud_mbps=5",
    "devices.spread=3",
    "evaluation.every=1000",
    "data.name={files}/digits.npz",
    "data.min_size=2",
)


def _schemes() -> dict[str, Settings]:
    def scheme(name: str, *options: str) -> Settings:
        return (f"scheme.name={name}", *(f"scheme.{option}" for option in options))

    return {
        "sd-feel": scheme("sd-feel", "tau1=2"),
        "sd-feel-rare": scheme("sd-feel", "tau1=1", "tau2=3", "alpha=2"),
        "async-sd-feel": scheme("async-sd-feel", "theta_min=2"),
        "async-sd-feel-balanced": scheme(
            "async-sd-feel", "theta_min=2", "balanced=true", "staleness=hearsay"
        ),
        "tiers": scheme("tiers", "theta_min=2"),
        "hierfavg": scheme("hierfavg", "tau1=2", "tau2=2"),
        "fedavg": scheme("fedavg", "tau1=2"),
        "fedavg-few": scheme("fedavg", "tau1=2", "participants=3"),
        "feel": scheme("feel", "tau1=2", "scheduled=3", "pool_size=5"),
        "fogfl": scheme("fogfl", "tau1=2", "tau2=2"),
        "fedmes": scheme("fedmes", "tau1=2"),
        "multi-level": scheme("multi-level", "tau1=3"),
        "fedasync": scheme("fedasync", "tau1=2"),
        "fedbuff": scheme("fedbuff", "tau1=2", "buffer=3"),
        "fedsa": scheme("fedsa", "tau1=2", "quota=3"),
        "safa": scheme("safa", "tau1=2"),
        "safa-crashes": scheme("safa", "tau1=2", "crash_chance=0.3"),
        "fednova": scheme("fednova", "theta_min=1"),
        "fedcs": scheme("fedcs", "tau1=2"),
        "fedcs-strict": scheme("fedcs", "tau1=2", "round_seconds=0.008"),
        "adaptive": scheme("adaptive", "tau_max=6", "budget=0.5"),
        "joint": scheme("joint", "tau1=2"),
        "d2": scheme("d2", "tau1=2"),
        "scaffold": scheme("scaffold", "tau1=2"),
        "scaffold-few": scheme("scaffold", "tau1=2", "participants=3"),
        "scaffnew": scheme("scaffnew", "tau1=2"),
        "mtgc": scheme("mtgc", "tau1=2", "tau2=3"),
        "mtgc-gossip": scheme("mtgc-gossip", "tau1=2", "tau2=2"),
        "k-gt": scheme("k-gt", "tau1=2"),
        "sd-gt": scheme("sd-gt", "tau1=2", "tau2=3"),
        "feddyn": scheme("feddyn", "tau1=2"),
        "free-tracking": scheme("free-tracking", "tau1=2"),
    }


SMALL = ("model.name=mlp", "model.options={ hidden = 4 }")  # with something to keep
# The slowest clients of most schemes miss it, the fastest keep it.
DEADLINE = "latency.deadline_seconds=0.0078"

FACTORS: Factors = {
    "scheme": _schemes(),
    "late": {
        "wait": (),
        "drop": ("latency.late=drop", DEADLINE),
        "drop-unbiased": ("latency.late=drop-unbiased", DEADLINE),
        "equalise": ("latency.late=equalise",),
    },
    "outages": {
        "none": (),
        "links": ("network.link_chance=0.7",),
        "servers": ("network.server_up_seconds=0.02", "network.server_down_seconds=0.01"),
    },
    "schedule": {
        "none": (),
        "link": ("network.changes={files}/link.txt",),
        "server": ("network.changes={files}/server.txt",),
        "seconds": ("network.changes={files}/seconds.txt",),
        "cloud": ("network.changes={files}/cloud.txt",),
    },
    "epochs": {
        "one": (),
        "moves": ('network.epochs=["2: client-0=none", "4: client-0=edge-1, client-1=edge-0"]',),
    },
    "clients": {
        "stay": (),
        "move": ("network.whereabouts={files}/moves.csv",),
        "rest": ("network.whereabouts={files}/away.csv", "network.whereabouts_period=0.03"),
        "walk": (  # and their rates with them, unless `channel` says otherwise
            *("network.whereabouts={files}/walk.csv", "network.places={files}/places.csv"),
            *("radio.rates=whereabouts", "radio.bandwidth_mhz=2"),
        ),
    },
    "uplink": {
        "none": (),
        "uniform": ("compression.uplink=uniform",),
        "top-k": ("compression.uplink=top-k", "compression.share=0.2"),
    },
    "backhaul": {
        "none": (),
        "uniform": ("compression.backhaul=uniform",),
        "top-k": ("compression.backhaul=top-k", "compression.share=0.2"),
    },
    "channel": {
        "equal": (),
        "distance": ("radio.rates=distance", "radio.bandwidth_mhz=2"),
        "rates": ("radio.rates={files}/rates.csv",),
    },
    "fading": {
        "none": (),
        "rayleigh": ("radio.fading=rayleigh",),
        "nakagami": ("radio.fading=nakagami", "radio.correlation=0.5"),
        "trace": ("radio.trace={files}/trace.csv",),
    },
    "links": {"equal": (), "file": ("radio.links={files}/links.csv",)},
    "devices": {
        "unequal": (),
        "equal": ("devices.spread=1",),
        "clustered": ("devices.placement=clustered",),
        "file": ("devices.file={files}/speeds.csv",),
        "hungry": ("devices.computing_watts=3", "devices.backhaul_watts=0"),
    },
    "partition": {
        "classes": (),
        "shards": ("data.partition=shards",),
        "dirichlet": ("data.partition=dirichlet",),
        "iid": ("data.partition=iid",),
    },
    "data": {
        "digits": (),
        "lazy": ("data.name=tests.pairs.options:noisy_digits", "data.lazy=true"),
    },
    "clusters": {
        "random": (),
        "by_label": ("network.assignment=by_label",),
        "ordered": ("network.assignment=ordered",),
        "imbalance": ("network.imbalance=1",),
    },
    "overlap": {"none": (), "one": ("network.overlap=1",)},
    "graph": {
        "ring": (),
        "star": ("network.graph=star",),
        "path": ("network.graph=path",),
        "complete": ("network.graph=complete",),
    },
    "mixing": {
        "paper": (),
        "metropolis": ("network.mixing=metropolis",),
        "size-weighted": ("network.mixing=size-weighted",),
        "base": ("network.graph=complete", "network.mixing=base-2"),
        "pairwise": ("network.mixing=pairwise",),
    },
    "optimizer": {
        "sgd": (),
        "momentum": ("training.momentum=0.5",),
        "nesterov": ("training.optimizer_options={ momentum = 0.5, nesterov = true }",),
        "adam": ("training.optimizer=Adam", "training.learning_rate=0.01"),
        "newton": (  # its messages are twice as long
            "training.optimizer=newton-diagonal",
            "latency.client_server_mbps=10",
            "latency.client_cloud_mbps=10",
        ),
    },
    "training": {
        "plain": (),
        "decay": ("training.weight_decay=0.1",),
        "proximal": ("training.proximal=0.5",),
        "schedule": ("training.schedule=cosine", "training.warmup=6"),
        "clipped": ("training.clip_norm=0.05", "training.average=0.5"),
    },
    "server": {
        "none": (),
        "momentum": ("server.optimizer=momentum", "server.momentum=0.5"),
        "adam": ("server.optimizer=adam", "server.learning_rate=0.002"),
        "quasi-global": ("server.optimizer=quasi-global", "server.momentum=0.5"),
    },
    "robust": {
        "none": (),
        "median": ("robust.cluster=median",),
        "nearest": (
            *("robust.cluster=multi-krum", "robust.before=nearest-neighbours"),
            "robust.votes=examples",
        ),
        "cs+": ("robust.servers=cs+", "robust.cluster=centred-clipping"),
    },
    "attack": {
        "none": (),
        "scaling": ("attack.kind=scaling", "attack.clients=2", "attack.strength=2"),
        "little": ("attack.kind=little-is-enough", "attack.clients=2"),
        "backdoor": ("attack.kind=backdoor", "attack.clients=1"),
        "server": ("attack.kind=scaling", "attack.servers=1", "attack.strength=1.2"),
    },
    "personal": {
        "none": (),
        "fedper": ("personal.method=fedper", *SMALL),
        "fedrep": ("personal.method=fedrep", "personal.share=0.4", *SMALL),
        "ditto": ("personal.method=ditto", "personal.pull=0.5"),
        "adapters": ("personal.method=parts", "personal.travels=3.*", *SMALL),
    },
    "privacy": {
        "nothing": (),
        "clients": ("privacy.protects=clients", "privacy.noise=0.01"),
        "shared": ("privacy.protects=clients", "privacy.noise=0.01", "privacy.noise_in=sum"),
        "examples": ("privacy.protects=examples", "privacy.noise=0.01"),
        "masks": ("privacy.secure_aggregation=true", "network.servers=2"),
    },
    "engine": {
        "loop": (),
        "parallel": ("training.engine=parallel",),
        "native": ("training.engine=native",),
        "batched": ("training.engine=batched",),
    },
    "model": {"logistic": (), "mlp": ("model.name=mlp", "model.options={ hidden = 4 }")},
    "evaluation": {
        "end": (),
        "often": ("evaluation.every=2",),
        "few": ("evaluation.test_examples=20", "evaluation.train_examples=30"),
        "estimates": ("evaluation.estimates=true",),
        "grouped": ("evaluation.per_client=accuracy", "evaluation.per_cluster=loss"),
    },
    "preset": {
        "literal": (),
        "deployed": ("latency.preset=deployed",),
        "epoch": ("latency.preset=paper-epoch", "latency.operations=250_000"),
        "batch": ("latency.samples_per_iteration=batch", "latency.operations=2_500_000"),
    },
    "counted": {
        "up": (),
        "down": ("latency.downlink=true",),
        "overheads": (
            *("latency.client_server_ms=2", "latency.server_server_ms=3"),
            *("latency.server_cloud_ms=9", "latency.client_cloud_ms=12"),
            *("latency.message_ms=0.5", "latency.round_ms=1", "latency.connect_ms=20"),
            *("latency.header_bytes=400", "latency.cell_mbps=8", "latency.common_mbps=20"),
            *("latency.cores=2", "latency.downlink=true", "latency.calls=true"),
            "latency.holds=true",
        ),
        "consensus": ("latency.consensus=true",),
    },
    "stop": {
        "iterations": (),
        "accuracy": ("training.target_accuracy=0.5", "evaluation.every=3"),
        "seconds": ("training.max_seconds=0.02",),
    },
    "sampling": {
        "all": (),
        "share": ("sampling.share=0.6",),
        "one": ("sampling.clients=1",),
    },
}


@dataclass(frozen=True)
class Place:
    """A directory with the files that options name, and the settings that all runs share."""

    files: Path
    base: Settings

    def settings(self, choice: Choice, factors: Factors = FACTORS) -> list[str]:
        """What `--set` would be given; later settings win."""
        choice = {"scheme": "sd-feel", **choice}
        chosen = [text for factor, value in choice.items() for text in factors[factor][value]]
        return [text.replace("{files}", str(self.files)) for text in (*self.base, *chosen)]

    def experiment(self, choice: Choice) -> Experiment:
        return load(None, self.settings(choice))


def place(
    files: Path, clients: int = CLIENTS, servers: int = SERVERS, more: Settings = ()
) -> Place:
    """Write the files that options name."""
    files.mkdir(parents=True, exist_ok=True)
    _write_digits(files / "digits.npz")
    for name, text in _texts(clients, servers).items():
        (files / name).write_text(text)
    size = (f"network.clients={clients}", f"network.servers={servers}")
    return Place(files, (*size, *BASE, *more))


@cache
def _digits() -> Dataset | Federated:
    return catalog.load("digits")


# Seven people in a table are the clients, and each is measured on examples of their own.
PEOPLE: Settings = (
    "data.name={files}/digits.csv",
    "data.target=label",
    "data.user=who",
    "data.partition=users",
    "evaluation.per_client=accuracy",
)


def write_people(path: Path) -> None:
    """A few digits as a table: 64 pixels, the class, and whose it is."""
    whole = _digits().train
    head = ",".join([*(f"p{n}" for n in range(64)), "label", "who"])
    pixels = whole.x[:280].flatten(1).tolist()
    rows = [
        ",".join([*(f"{value:.3f}" for value in row), str(int(whole.y[n])), f"person-{n % 7}"])
        for n, row in enumerate(pixels)
    ]
    path.write_text("\n".join([head, *rows, ""]))


class _Noisy:
    """A few digits, another each time."""

    def __init__(self, count: int) -> None:
        self.whole = _digits().train
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, n: int) -> tuple[torch.Tensor, int]:
        return self.whole.x[n] + 0.1 * torch.randn(1, 8, 8), int(self.whole.y[n])


def noisy_digits() -> tuple[_Noisy, _Noisy]:
    """Data with random augmentation."""
    return _Noisy(280), _Noisy(80)


def _write_digits(path: Path) -> None:
    """The first few of the digits: as much as seven clients need."""
    whole = _digits()
    np.savez(
        path,
        x_train=whole.train.x[:280].numpy(),
        y_train=whole.train.y[:280].numpy(),
        x_test=whole.test.x[:80].numpy(),
        y_test=whole.test.y[:80].numpy(),
    )


def _texts(clients: int, servers: int) -> dict[str, str]:
    count = np.arange(clients)
    rates = 4 + 2 * np.cos(count)
    return {
        "link.txt": "round 1 link 0 1 down\nround 4 link 0 1 up\n",
        "server.txt": f"round 1 server {servers - 1} down\nround 3 server {servers - 1} up\n",
        "seconds.txt": "second 0.01 server 0 down\nsecond 0.03 server 0 up\n",
        "moves.csv": (  # the last server is left by everybody, then somebody comes back
            "round,client,server\n"
            + "".join(f"1,{i},{i % max(1, servers - 1)}\n" for i in range(0, clients, 2))
            + "".join(f"2,{i},0\n" for i in range(1, clients, 2))
            + f"3,0,{servers - 1}\n4,1,none\n"
        ),
        "away.csv": "seconds,client,charging,wifi\n"
        + "".join(
            f"{0.001 * i + 0.004:.3f},{i},1,0\n{0.001 * i + 0.015:.3f},{i},-,1\n"
            for i in range(clients)
        ),
        "places.csv": "longitude,latitude\n" + "".join(f"{d / 200},0\n" for d in range(servers)),
        "walk.csv": "seconds,client,longitude,latitude\n"
        + "".join(
            f"{0.006 * n},{i},{(i + n) % (4 * servers) / 800 + 0.001},0.001\n"
            for n in range(6)
            for i in range(0, clients, 2)
        ),
        "cloud.txt": "round 1 cloud down\nround 3 cloud up\n",
        "links.csv": "0,1,20\n0,cloud,2\n",
        "rates.csv": "mbps\n" + "".join(f"{rate:.2f}\n" for rate in rates),
        "speeds.csv": "gflops\n" + "".join(f"{4 + 3 * (i % 4)}\n" for i in count),
        "trace.csv": "".join(
            ",".join(f"{5 + np.sin(row + i):.2f}" for i in count) + "\n" for row in range(5)
        ),
    }


def named(choice: Choice) -> Choice:
    """Without what is default anyway."""
    return {f: v for f, v in choice.items() if v != next(iter(FACTORS[f]))}


def text(choice: Choice) -> str:
    """
    >>> text({"scheme": "d2", "late": "wait", "outages": "links"})
    'scheme=d2 outages=links'
    """
    whole = {"scheme": choice["scheme"], **named(choice)} if "scheme" in choice else named(choice)
    return " ".join(f"{factor}={value}" for factor, value in whole.items())


def parsed(words: str) -> Choice:
    """The inverse of `text`."""
    choice = dict(word.split("=", 1) for word in words.split())
    for factor, value in choice.items():
        if value not in FACTORS.get(factor, {}):
            raise SystemExit(f"no option {factor}={value}: see tests/pairs/options.py")
    return choice


def names(factor: str, value: str) -> set[str]:
    """Words of which a sentence that refuses this value must hold one."""
    words = {value}
    for setting in FACTORS[factor][value]:
        key, _, given = setting.partition("=")
        words |= {given} if key == "scheme.name" else {key.rpartition(".")[2], given}
    return {word.lower() for word in words if not word.replace(".", "").isdecimal()}
