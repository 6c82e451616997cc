"""The experiment: everything that decides a run's result, in one frozen record.

The file format, the command line's `--set`, the commented file of `sdfeel init` and the errors
all come from the classes below; `loading.py` reads them.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from sdfeel import schemes
from sdfeel.core import named
from sdfeel.experiment import toml

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Names = Annotated[  # on the command line, words with commas between them
    list[str],
    BeforeValidator(lambda given: given.split(",") if isinstance(given, str) else given),
]


def _nameable(given: Any) -> Any:
    if given is None or isinstance(given, int | float | Mapping):
        raise PydanticCustomError("string_type", "a text")
    return given


def _own(given: Any) -> Any:
    if given is None or (isinstance(given, int | float | str) and not named.is_path(given)):
        raise PydanticCustomError("string_type", "a text")
    return given


def _kept(thing: Any, info: SerializationInfo) -> Any:
    """A thing itself; in a file, its name."""
    return named.spelled(thing) if info.mode == "json" else thing


_RECORDED = (PlainSerializer(_kept), WithJsonSchema({"type": "string"}))
# A name, `package.module:name`, or the thing itself: `core.named`.
Thing = Annotated[Any, BeforeValidator(_nameable), *_RECORDED]
Own = Annotated[Any, BeforeValidator(_own), *_RECORDED]  # all but a plain name


def _labelled(given: Any) -> Any:
    """Things by their names; those of a list, and words with commas, by the ends of their own."""
    if isinstance(given, Mapping):
        return given
    listed = given.split(",") if isinstance(given, str) else given
    listed = listed if isinstance(listed, list | tuple) else [listed]
    return {_label(each): each for each in listed}


def _label(thing: Any) -> str:
    name = thing if isinstance(thing, str) else getattr(thing, "__name__", type(thing).__name__)
    return str(name).rpartition(":")[2]


Things = Annotated[dict[str, Thing], BeforeValidator(_labelled)]


class Section(BaseModel):
    """A frozen table that knows its keys."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,  # neither `true` nor "3" is a number
        protected_namespaces=(),  # older versions of pydantic warn about names like `model_bits`
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class NamedSection(Section):
    """A section whose name says it all: `model = "mlp"` is `model.name = "mlp"`."""

    @model_validator(mode="before")
    @classmethod
    def _of_name(cls, given: Any) -> Any:
        whole = isinstance(given, Mapping | Section | int | float | type(None))
        return given if whole else {"name": given}


class NetworkSection(Section):
    """The clients and edge servers, and how the servers are connected."""

    clients: Count = 50
    """number of clients"""
    servers: Count = 10
    """number of edge servers"""
    graph: Thing = "ring"
    """star, ring, path, complete, partial, grid, torus, geometric, erdos-renyi, a file (edge list
    or .graphml), or package.module:name (links, or a function of servers and rng that gives
    them)"""
    radius: Positive | None = None
    """geometric graph: how far a link reaches in the unit square (not set: far enough)"""
    probability: Positive | None = None
    """erdos-renyi graph: chance of each link (not set: high enough)"""
    mixing: Thing = "paper"
    """how servers weight their neighbours: paper, metropolis, size-weighted, a file with a matrix
    (row = receiver; .csv, .json or .npy), or package.module:name (a matrix, or a function of links
    and masses); or whom they meet, few at a time: one-peer-exponential, base-2, base-3, ... (exact
    agreement), epidemic-1, epidemic-2, ..., pairwise (at random)"""
    assignment: Thing = "random"
    """which client belongs to which server: random, by_label, ordered, a file, or
    package.module:name (a server per client, or a function of clients, servers and rng)"""
    imbalance: Annotated[int, Field(ge=0)] = 0
    """gamma: some clusters are this many clients smaller, and as many clusters are larger"""
    overlap: Annotated[int, Field(ge=0)] = 0
    """clients of each cell that the next cell reaches, too (used by fedmes)"""
    changes: str | None = None
    """a file that says when links, servers or the cloud go down and come back"""
    link_chance: Annotated[float, Field(gt=0, le=1)] = 1.0
    """chance that a server link is up, drawn for every link in every round"""
    server_up_seconds: Positive | None = None
    """mean virtual seconds until an edge server fails (not set: none fails)"""
    server_down_seconds: Positive | None = None
    """mean virtual seconds until it is back"""
    epochs: list[str] = []
    """who joins, leaves or moves: `10: client-3=none, edge-2=edge-0+edge-1` from round 10 on"""


class DataSection(NamedSection):
    """Which data, and how they are split over the clients."""

    name: Thing = "digits"
    """digits (built in), mnist, fashion-mnist, cifar10, an .npz file, or package.module:name (train
    and test data, or a function that gives them)"""
    directory: str | None = None
    """where the files are (not set: the user's cache; see `sdfeel data`)"""
    partition: Thing = "classes"
    """classes (exactly classes_per_client each), shards, dirichlet, iid, a file, or
    package.module:name (a function of labels, clients and rng)"""
    classes_per_client: Count = 2
    """classes that each client holds (classes, shards)"""
    concentration: Positive = 0.5
    """dirichlet: smaller is more uneven"""
    balance: bool = False
    """dirichlet: stop filling clients that have their share"""
    min_size: Annotated[int, Field(ge=1)] = 10
    """dirichlet: draw again while a client has fewer examples"""


class ModelSection(NamedSection):
    """The model to train."""

    name: Thing = "auto"
    """auto (what suits the data), mnist-cnn, cifar-cnn, mlp, logistic, or package.module:name"""
    options: dict[str, Any] = {}
    """arguments of the model, for example { hidden = 128 }"""


class SchemeSection(BaseModel):
    """How to train: `sdfeel schemes` lists the names and their keys."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    name: Thing = "sd-feel"
    """any name that `sdfeel schemes` lists, such as hierfavg, fedavg or async-sd-feel, or
    package.module:name (a scheme of your own)"""

    @model_validator(mode="before")
    @classmethod
    def _of_instance(cls, given: Any) -> Any:
        """A scheme's name and options, where a scheme itself is given."""
        return schemes.described(given)

    @property
    def label(self) -> str:
        """What to call it."""
        return schemes.label(self.name)

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


class ServerSection(Section):
    """Steps that servers take towards what mixing gives them: see docs/schemes.md."""

    optimizer: Literal["none", "momentum", "adam", "yogi", "adagrad", "quasi-global"] = "none"
    """none (servers take over what mixing gives them), momentum (FedAvgM), adam (FedAdam), yogi
    (FedYogi), adagrad (FedAdagrad), or quasi-global (momentum of what gossip makes)"""
    learning_rate: Positive | None = None
    """step size (not set: 1 for momentum and quasi-global, 0.01 for the others)"""
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    """share of the last step that is repeated, beta1 (not set: 0.9, for adagrad 0)"""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """adam, yogi: decay of the second moments"""
    tau: Positive = 0.001
    """adam, yogi, adagrad: what is added to the root of the second moments"""


class TrainingSection(Section):
    """The local steps, and when to stop."""

    iterations: Count = 500
    """local iterations of each client"""
    learning_rate: Positive = 0.05
    """step size"""
    batch_size: Count = 10
    """examples per step"""
    optimizer: Thing = "sgd"
    """any optimiser of torch.optim (or package.module:name, an optimiser of your own), whose state
    is forgotten at every broadcast; newton-diagonal:
    steps scaled by the curvature, which travels with the model; or shared-adam: Adam whose moments
    travel with the model and are averaged like it"""
    momentum: Annotated[float, Field(ge=0)] = 0.0
    """sgd only"""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """for every optimiser that has it"""
    proximal: Annotated[float, Field(ge=0)] = 0.0
    """pull towards the model that the round began with (FedProx, FedAsync)"""
    penalties: dict[str, float] = {}
    """further terms of the loss with their strengths, for example { l1 = 0.001 }"""
    optimizer_options: dict[str, Any] = {}
    """more arguments of the optimiser, for example { nesterov = true }"""
    loss: Thing = "cross-entropy"
    """what is made small: cross-entropy, mse, l1, huber, bce, or package.module:name (a function of
    outputs and targets that gives a mean)"""
    engine: Literal["auto", "loop", "parallel", "native", "ray"] = "auto"
    """what computes the steps: auto (the fastest that fits), loop (one core, the definition),
    parallel (loop on all cores, the same bits), native (compiled for the model, the same bits on
    every modern CPU), ray (native where it fits, otherwise loop, over a Ray cluster: the same bits
    as on one machine)"""
    workers: Annotated[int, Field(ge=0)] = 0
    """threads of the native engine, processes of parallel, actors of ray (0: one per core)"""
    target_accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    """stop as soon as this test accuracy is measured"""
    max_seconds: Positive | None = None
    """stop when the virtual clock passes this"""


class LatencySection(Section):
    """How long things take on the virtual clock."""

    preset: Literal["paper-literal", "paper-epoch"] = "paper-literal"
    """paper-literal (an iteration is a batch) or paper-epoch (a pass over the client's data)"""
    samples_per_iteration: Literal["one", "batch", "all"] | None = None
    """samples whose operations one iteration is charged for (not set: as in the preset)"""
    backward_factor: Positive | None = None
    """ratio of the operations of training to those of a forward pass (not set: as in the preset)"""
    iteration_unit: Literal["batch", "epoch"] | None = None
    """what one local iteration is (not set: as in the preset)"""
    operations: Positive | None = None
    """multiply-accumulates of one sample's forward pass (not set: counted)"""
    model_bits: Positive | None = None
    """size of a model on the wire (not set: 32 bits per parameter)"""
    client_server_mbps: Positive = 5.0
    """megabits per second, client to edge server"""
    server_server_mbps: Positive = 50.0
    """megabits per second, edge server to edge server"""
    server_cloud_mbps: Positive = 5.0
    """megabits per second, edge server to cloud"""
    client_cloud_mbps: Positive = 2.5
    """megabits per second, client to cloud"""
    cell_edge_mbps: Positive = 2.06
    """megabits per second of a client that sends to several servers at once"""
    downlink: bool = False
    """charge time for sending models down, too (the paper does not)"""
    consensus: bool = False
    """charge for the exchanges until the servers agree at the end (the paper does not)"""
    late: Literal["wait", "drop", "drop-unbiased", "equalise"] | Own = "wait"
    """clients that would be late: wait for them, drop them (those that arrive count in proportion,
    or by one over their chance of arriving), or share each cell's bandwidth so that all end at
    once; or package.module:name (a policy of your own)"""
    deadline_seconds: Positive | None = None
    """virtual seconds from a round's start until a client is dropped"""


class RadioSection(Section):
    """The clients' channels and the servers' links: see docs/radio.md."""

    rates: str = "equal"
    """each client's mean rate: equal (latency.client_server_mbps), distance (Shannon's rate at its
    distance), or a .csv file with a column `mbps` or `metres` and a row per client"""
    fading: Literal["off", "rayleigh", "nakagami"] | Own = "off"
    """how channels change from round to round; or package.module:name (a function of the clients'
    mean rates, their mean signal-to-noise ratios and the seed that gives a channel)"""
    nakagami_m: Positive = 2.0
    """nakagami: 0.5, 1 (Rayleigh), 1.5, 2, ...; the higher, the steadier"""
    correlation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """correlation of a channel with itself one round later, below 1"""
    snr_db: float | None = None
    """mean signal-to-noise ratio where rates are equal (not set: 15)"""
    trace: str | None = None
    """a .csv file of rates in Mbit/s: a column per client, a row per round (or a first column
    `seconds`)"""
    links: str | None = None
    """a .csv file of server links: `0,1,40` is 40 Mbit/s between servers 0 and 1, `0,cloud,4`
    is 4 Mbit/s from server 0 to the cloud"""
    bandwidth_mhz: Positive = 1.0
    """bandwidth of each client's own channel"""
    power_dbm: float = 23.0
    """power radiated by a client"""
    noise_dbm_per_hz: float = -174.0
    """thermal noise"""
    path_loss_db: float = 128.1
    """path loss at one kilometre"""
    path_loss_exponent: Positive = 3.76
    """how fast the loss grows with distance"""
    cell_metres: Positive = 1000.0
    """radius of a cell; clients are placed anywhere in it"""


class CompressionSection(Section):
    """How models are made smaller before they are sent; what is lost is sent later."""

    uplink: Literal["none", "uniform", "top-k"] = "none"
    """what clients send: whole models, numbers of few bits, or only the largest changes"""
    backhaul: Literal["none", "uniform", "top-k"] = "none"
    """what edge servers send one another"""
    bits: Annotated[int, Field(ge=2, le=32)] = 8
    """uniform: bits per number (32: uncompressed)"""
    share: Annotated[float, Field(gt=0, le=1)] = 0.05
    """top-k: share of the numbers that are sent (1: all)"""


class PersonalSection(Section):
    """What each client keeps to itself: see docs/methods.md."""

    method: Literal["none", "parts", "fedper", "fedbn", "fedrep", "ditto"] = "none"
    """none (all share one model), parts (what personal.stays or personal.travels says), fedper (the
    last layer stays), fedbn (normalisation layers stay), fedrep (what stays is trained first, then
    what travels), ditto (a whole model of one's own beside the shared one)"""
    stays: Names = []
    """tensors that never leave a client: patterns of their names, head (the last layer), norms"""
    travels: Names = []
    """the only tensors that do, such as *lora*; instead of personal.stays"""
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """fedrep: share of a round's local iterations that train what stays"""
    pull: Annotated[float, Field(ge=0)] = 0.1
    """ditto: how strongly a client's own model is pulled towards the shared one (0: not at all)"""


class DevicesSection(Section):
    """How fast the clients are, and how much power they need."""

    gflops: Positive = 10.0
    """mean speed, 10^9 operations per second"""
    spread: Annotated[float, Field(ge=1)] = 1.0
    """speed of the fastest over the slowest (the mean stays the same)"""
    placement: Literal["random", "clustered", "even"] = "random"
    """where fast devices are: anywhere, together in some clusters, or evenly in all"""
    file: str | None = None
    """speeds in gflops, one per client: a CSV with a column `gflops`, or bare numbers"""
    computing_watts: Annotated[float, Field(ge=0)] = 1.0
    """power of a client while it computes"""
    sending_watts: Annotated[float, Field(ge=0)] = 0.5
    """power of a client while it sends"""
    backhaul_watts: Annotated[float, Field(ge=0)] = 5.0
    """power of a server while it sends"""


class EvaluationSection(Section):
    """When and on what the model is measured."""

    every: Annotated[int, Field(ge=0)] = 0
    """rounds between two measurements (0: about 25 in the run, fewer if they would cost much)"""
    train_examples: Annotated[int, Field(ge=0)] = 2000
    """number of examples for measuring the training loss, drawn once (0: all)"""
    estimates: bool = False
    """also measure gradients, L, sigma^2 and kappa^2, with three gradients of every client; the
    report then shows the bound of Theorem 1 beside them"""
    test_examples: Annotated[int, Field(ge=0)] = 0
    """number of examples for measuring the accuracy, drawn once (0: all)"""
    metrics: Things = {}
    """further metrics on the test data: accuracy, loss, mae, rmse, r2, top-5 accuracy, or
    package.module:name (a function of outputs and targets)"""
    per_client: Names = []
    """metrics on every client's own training examples (accuracy, loss): their mean over clients,
    their worst tenth and their spread are reported"""
    per_cluster: Names = []
    """metrics on the training examples of every server's clients, like per_client"""
    per_client_every: Annotated[int, Field(ge=0)] = 0
    """rounds between two measurements per client or cluster (0: as often as the cost stays low)"""


class CheckpointSection(Section):
    """How much work is lost, at most, when the machine fails."""

    every_seconds: Annotated[float, Field(ge=0)] = 10.0
    """real seconds between two checkpoints (0: after every round)"""


# Keys that were added later decide only where they are used: older runs can be resumed.
LATER: dict[str, Any] = {
    "radio": True,
    "server": True,
    "latency": {"late"},
    "network": {"link_chance", "epochs"},
    "training": {"penalties", "loss"},
    "evaluation": {
        "metrics",
        "estimates",
        "test_examples",
        "per_client",
        "per_cluster",
        "per_client_every",
    },
    "personal": True,
}


class Experiment(Section):
    """Everything that decides a run."""

    seed: Annotated[int, Field(ge=0)] = 0
    """the same seed gives the same bits: on every modern CPU with the native engine, on the same
    kind of CPU with torch"""
    network: NetworkSection = NetworkSection()
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    scheme: SchemeSection = SchemeSection()
    server: ServerSection = ServerSection()
    training: TrainingSection = TrainingSection()
    latency: LatencySection = LatencySection()
    radio: RadioSection = RadioSection()
    compression: CompressionSection = CompressionSection()
    personal: PersonalSection = PersonalSection()
    devices: DevicesSection = DevicesSection()
    evaluation: EvaluationSection = EvaluationSection()
    checkpoint: CheckpointSection = CheckpointSection()

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides the result."""
        without = {"checkpoint": True, **LATER, "training": {"workers", *LATER["training"]}}
        decides = self.model_dump(mode="json", exclude=without, exclude_none=True)
        used = self.model_dump(mode="json", include=LATER, exclude_defaults=True)
        for section in ("training", "server", "personal"):  # those came after version 0.1
            if not used.get(section):
                used.pop(section, None)
        if any(used.values()):
            decides["later"] = used
        if decides["training"]["engine"] not in ("native", "ray"):  # ray: native where it fits
            decides["training"]["engine"] = "torch"  # the others give the same bits
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    def text(self) -> str:
        """The experiment as a file."""
        return toml.document(self.model_dump(mode="json"))
