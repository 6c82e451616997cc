"""What each key needs in order to have an effect, and which of them cannot go together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from sdfeel.core.link_times import Link
from sdfeel.core.named import recorded_name
from sdfeel.core.network import Network
from sdfeel.core.outages import Change
from sdfeel.core.scheme import Scheme, defaults
from sdfeel.core.tolerance import OPTIONS, YES, Tolerates
from sdfeel.core.whereabouts import Whereabouts
from sdfeel.data.sources import DATASETS
from sdfeel.data.tables import is_table
from sdfeel.experiment.schema import Experiment
from sdfeel.radio.latency import PRESETS
from sdfeel.schemes import find, has_lanes
from sdfeel.schemes.sampling import Sampling

Rates = Literal["equal", "distance", "whereabouts", "metres", "mbps"]


@dataclass(frozen=True, eq=False)
class Case:
    """Everything that decides whether a key has an effect."""

    experiment: Experiment
    scheme: Scheme
    tolerates: Tolerates
    net: Network
    own: Network  # as the scheme uses it
    schedule: tuple[Change, ...] = ()  # what network.changes says
    links: tuple[bool, bool] = (False, False)  # does radio.links name servers? the cloud?
    rates: Rates = "equal"  # what the clients' mean rates come from
    engine: str = "native"  # the one that computes the run
    clients: Whereabouts | None = None  # what network.whereabouts says

    @cached_property
    def used(self) -> frozenset[str]:
        """Which of `core.tolerance.OPTIONS` the scheme makes use of."""
        return frozenset(each for each in OPTIONS if self.tolerates.verdict(each) == YES)

    @property
    def lanes(self) -> bool:
        """Does somebody continue without waiting for all the others?"""
        return has_lanes(self.scheme, self.own)

    @property
    def several(self) -> bool:
        """Are there several edge servers?"""
        return len(self.net.servers) > 1

    @property
    def consensus(self) -> bool:
        """Do the servers gossip at the end, whatever the scheme does before?"""
        return self.experiment.latency.consensus and len(self.own.servers) > 1

    @property
    def cells(self) -> bool:
        """Does it matter which client belongs to which server?"""
        everyone = len(self.own.servers) == 1 and len(self.own.clients) == len(self.net.clients)
        devices = self.experiment.devices
        placed = devices.placement != "random" and devices.spread > 1 and devices.file is None
        return not everyone or placed

    @property
    def codecs(self) -> set[str]:
        """How messages are compressed."""
        section = self.experiment.compression
        across = "backhaul" in self.used and self.several
        return {section.uplink, section.backhaul if across else "none"}

    @property
    def single_steps(self) -> bool:
        """Does a client take only one step from every model that it receives?"""
        scheme, latency = self.experiment.scheme, self.experiment.latency
        usual = defaults(find(scheme.name))
        unit = latency.iteration_unit or PRESETS[latency.preset].iteration_unit
        return scheme.options.get("tau1", usual.get("tau1")) == 1 and unit == "batch"

    @property
    def bandwidth(self) -> bool:
        """Does sending depend on more than the mean rates?"""
        equalised = self.experiment.latency.late == "equalise" and "equalise" in self.used
        fading = self.experiment.radio.fading
        return not isinstance(fading, str) or fading != "off" or equalised or self.tolerates.shares

    @property
    def measured_channels(self) -> bool:
        """Do clients' rates come from a place or a file?"""
        return self.rates != "equal" or self.experiment.radio.trace is not None


@dataclass(frozen=True)
class Need:
    """What a key needs in order to have an effect, and the words for when it has none."""

    holds: Callable[[Case], bool]
    otherwise: str = ""  # empty: it is the scheme that does not use the key


def _where(path: str, *values: Any) -> Need:
    """Another key has one of these values."""
    value = attrgetter(path)
    return Need(
        lambda case: isinstance(found := value(case.experiment), str) and found in values,
        f"without {path} = {' or '.join(map(str, values))}",
    )


def _set(*paths: str) -> Need:
    """One of these keys has a value."""
    values, (*others, last) = [attrgetter(path) for path in paths], paths
    return Need(
        lambda case: any(value(case.experiment) not in (None, 0, "none", []) for value in values),
        f"without {', '.join(others)} or {last}" if others else f"without {last}",
    )


def _over(link: Link) -> Need:
    """Models travel on links of this kind."""
    return Need(lambda case: link in case.tolerates.links)


SEVERAL = Need(lambda case: case.several, "with one edge server")
CELLS = Need(lambda case: case.cells or not case.several)
ACROSS = Need(lambda case: case.consensus or "server-server" in case.tolerates.links)
OVERLAPPING = _set("network.overlap")
DISTANT = Need(lambda case: case.rates not in ("equal", "mbps"), "without radio.rates = distance")
NO_FILE = Need(lambda case: case.experiment.devices.file is None, "together with devices.file")
NEARBY = Need(lambda case: "client-server" in case.tolerates.links or case.measured_channels)
STEPPING = _set("server.optimizer")
JUDGED = Need(
    lambda case: recorded_name(case.experiment.robust.cluster) != "none", "without robust.cluster"
)
COMPARED = Need(
    lambda case: (
        recorded_name(case.experiment.robust.servers) != "none"
        and case.several
        and "server_rule" in case.used
    )
)
PERSONAL = _set("personal.method")
EXPECTED = Need(
    lambda case: (
        case.experiment.robust.before != "none"
        or case.experiment.robust.cluster in ("trimmed-mean", "multi-krum")
    ),
    "without robust.cluster = trimmed-mean or multi-krum, or robust.before",
)
CLIPPING = Need(
    lambda case: (
        case.experiment.robust.cluster == "centred-clipping"
        or case.experiment.robust.servers == "clipped-gossip"
    ),
    "without robust.cluster = centred-clipping or robust.servers = clipped-gossip",
)
ATTACKED = _set("attack.kind")
UNNAMED = Need(lambda case: not case.experiment.attack.who, "together with attack.who")
SOMEBODY = _set("attack.clients", "attack.servers", "attack.who")
SEVERAL_STEPS = Need(lambda case: not case.single_steps, "with scheme.tau1 = 1")
PRIVATE = _where("privacy.protects", "clients", "examples")
PER_CLIENT = Need(
    lambda case: bool(
        case.experiment.evaluation.per_client
        or case.experiment.evaluation.per_cluster
        or case.experiment.evaluation.own_steps
    ),
    "without evaluation.per_client or evaluation.per_cluster",
)
OWN_DATA = Need(
    lambda case: (
        not isinstance(name := case.experiment.data.name, str)
        or (name not in DATASETS and not name.lower().endswith(".npz"))
    ),
    "with data sets known by name and .npz files",
)
ANEW = Need(lambda case: not is_table(recorded_name(case.experiment.data.name)), "with a table")
FOLDER = Need(
    lambda case: Path(recorded_name(case.experiment.data.name)).is_dir(),
    "without a folder of pictures",
)
AS_PRICED = Need(
    lambda case: case.experiment.latency.preset != "deployed", "with latency.preset = deployed"
)
DRAWN = Need(
    lambda case: Sampling(**vars(case.experiment.sampling)).draws(case.own),
    "where everybody takes part anyway",
)
KEYS: Mapping[str, tuple[Need, ...]] = {
    "network.servers": (CELLS,),
    "network.assignment": (SEVERAL, CELLS),
    "network.imbalance": (SEVERAL, CELLS),
    "network.graph": (SEVERAL,),
    "network.radius": (_where("network.graph", "geometric"), SEVERAL, ACROSS),
    "network.probability": (_where("network.graph", "erdos-renyi"), SEVERAL, ACROSS),
    "network.mixing": (SEVERAL,),
    "network.overlap": (SEVERAL,),
    "network.cloud": (SEVERAL,),
    "network.link_chance": (SEVERAL,),
    "network.whereabouts_period": (_set("network.whereabouts"),),
    "data.directory": (
        Need(
            lambda case: (
                recorded_name(case.experiment.data.name) in ("mnist", "fashion-mnist", "cifar10")
            ),
            "with built-in data or a file",
        ),
    ),
    "data.target": (OWN_DATA,),
    "data.inputs": (OWN_DATA,),
    "data.lazy": (OWN_DATA, ANEW),
    "data.pixels": (FOLDER,),
    "data.classes_per_client": (_where("data.partition", "classes", "shards"),),
    "data.concentration": (_where("data.partition", "dirichlet"),),
    "data.balance": (_where("data.partition", "dirichlet"),),
    "data.min_size": (_where("data.partition", "dirichlet"),),
    "sampling.clients": (DRAWN,),
    "sampling.share": (DRAWN,),
    "server.learning_rate": (STEPPING,),
    "server.momentum": (STEPPING,),
    "server.beta2": (_where("server.optimizer", "adam", "yogi"),),
    "server.tau": (_where("server.optimizer", "adam", "yogi", "adagrad"),),
    "robust.servers": (SEVERAL,),
    "robust.votes": (JUDGED,),
    "robust.before": (JUDGED,),
    "robust.liars": (EXPECTED, JUDGED),
    "robust.radius": (CLIPPING,),
    "robust.steps": (_where("robust.cluster", "geometric-median", "centred-clipping"),),
    "robust.server_liars": (_where("robust.servers", "cs+"), SEVERAL),
    "attack.kind": (SOMEBODY,),
    "attack.clients": (ATTACKED,),
    "attack.servers": (ATTACKED,),
    "attack.who": (ATTACKED,),
    "attack.placement": (UNNAMED, _set("attack.clients")),
    "attack.strength": (ATTACKED, SOMEBODY),
    "attack.target": (_where("attack.kind", "backdoor"), SOMEBODY),
    "training.momentum": (SEVERAL_STEPS,),
    "training.proximal": (SEVERAL_STEPS,),
    "training.schedule_unit": (
        Need(
            lambda case: (
                case.experiment.training.schedule != "constant"
                or case.experiment.training.warmup > 0
            ),
            "without a schedule",
        ),
    ),
    "training.workers": (
        Need(  # a loop has one worker, and runs side by side set this key to 1
            lambda case: case.engine != "loop" or case.experiment.training.workers == 1,
            "with training.engine = loop",
        ),
    ),
    "training.device": (
        Need(lambda case: case.engine == "batched", "with engines other than batched"),
    ),
    "latency.client_server_mbps": (NEARBY,),
    "latency.server_server_mbps": (SEVERAL, ACROSS),
    "latency.server_cloud_mbps": (_over("server-cloud"),),
    "latency.client_cloud_mbps": (_over("client-cloud"),),
    "latency.downlink": (AS_PRICED,),
    "latency.calls": (
        AS_PRICED,
        Need(
            lambda case: not case.lanes or len(case.own.servers) > 1,
            "where every client has rounds of its own",
        ),
    ),
    "latency.holds": (
        AS_PRICED,
        Need(lambda case: case.lanes and len(case.own.servers) > 1, "where servers are in step"),
    ),
    "latency.client_server_ms": (_over("client-server"),),
    "latency.server_server_ms": (SEVERAL, _over("server-server")),
    "latency.server_cloud_ms": (_over("server-cloud"),),
    "latency.client_cloud_ms": (_over("client-cloud"),),
    "latency.cell_edge_mbps": (Need(lambda case: "overlap" in case.used), SEVERAL, OVERLAPPING),
    "latency.consensus": (SEVERAL, Need(lambda case: len(case.own.servers) > 1)),
    "radio.nakagami_m": (_where("radio.fading", "nakagami"),),
    "radio.correlation": (_where("radio.fading", "rayleigh", "nakagami"),),
    "radio.snr_db": (
        Need(
            lambda case: not case.measured_channels,
            "where rates are measured or depend on distance",
        ),
        Need(
            lambda case: case.bandwidth,
            "without radio.fading or shared bandwidth",
        ),
    ),
    "radio.bandwidth_mhz": (
        Need(lambda case: case.measured_channels, "without radio.rates or radio.trace"),
    ),
    "radio.power_dbm": (DISTANT,),
    "radio.noise_dbm_per_hz": (DISTANT,),
    "radio.path_loss_db": (DISTANT,),
    "radio.path_loss_exponent": (DISTANT,),
    "radio.cell_metres": (_where("radio.rates", "distance", "whereabouts"),),
    "compression.backhaul": (SEVERAL,),
    "compression.bits": (
        Need(lambda case: "uniform" in case.codecs, "where no link uses uniform"),
    ),
    "compression.share": (Need(lambda case: "top-k" in case.codecs, "where no link uses top-k"),),
    "personal.stays": (_where("personal.method", "parts", "fedper", "fedbn", "fedrep"),),
    "personal.travels": (_where("personal.method", "parts", "fedper", "fedbn", "fedrep"),),
    "personal.share": (_where("personal.method", "fedrep"),),
    "personal.pull": (_where("personal.method", "ditto"),),
    "privacy.clip": (PRIVATE,),
    "privacy.noise": (PRIVATE,),
    "privacy.noise_in": (_where("privacy.protects", "clients"),),
    "privacy.delta": (PRIVATE,),
    "evaluation.per_client_every": (PER_CLIENT,),
    "evaluation.per_client_on": (PER_CLIENT,),
    "devices.gflops": (NO_FILE,),
    "devices.spread": (NO_FILE,),
    "devices.placement": (
        NO_FILE,
        Need(lambda case: case.experiment.devices.spread > 1, "without devices.spread"),
    ),
}
# What cannot go together, with the sentence that says so; `check` fills in the {names}.
CLASHES: tuple[tuple[tuple[Need, ...], str], ...] = (
    (
        (JUDGED, _where("latency.late", "drop-unbiased")),
        "latency.late = drop-unbiased scales models by their chances of arriving, but "
        "robust.cluster = {cluster} compares them as they are: set latency.late to drop",
    ),
    (
        (JUDGED, _where("privacy.noise_in", "sum")),
        "privacy.noise_in = sum spreads the noise over a cluster's clients, but robust.cluster = "
        "{cluster} does not add them up: set privacy.noise_in to message",
    ),
    (
        (COMPARED, Need(lambda case: case.net.peers is not None)),
        "robust.servers = {servers} compares the models of many neighbours, but network.mixing = "
        "{mixing} lets servers meet few at a time: choose another network.mixing",
    ),
    (
        (COMPARED, _where("compression.backhaul", "uniform", "top-k")),
        "robust.servers = {servers} compares whole models, but compression.backhaul = {codec} "
        "sends differences between models: set one of the two to none",
    ),
    (
        (PERSONAL, _set("evaluation.estimates")),
        "evaluation.estimates measures a model that all share, but personal.method is {method}: "
        "leave one of them out",
    ),
    (
        (PERSONAL, _set("evaluation.own_steps")),
        "evaluation.own_steps measures what clients make of a model that all share, but "
        "personal.method is {method}: leave one of them out",
    ),
    (
        (_where("personal.method", "fedrep"), Need(lambda case: case.single_steps)),
        "personal.method = fedrep divides a round's iterations between what stays and what "
        "travels, but scheme.tau1 is 1: raise it to at least 2",
    ),
)
