"""The experiment: everything that decides a run's result, in one frozen record.

The file format, the command line's `--set`, the commented file of `sdfeel init` and the errors
all come from the classes below; `loading.py` reads them.
"""

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from sdfeel import schemes
from sdfeel.core.errors import InputError
from sdfeel.experiment import toml
from sdfeel.experiment.cost_sections import DevicesSection, LatencySection, RadioSection
from sdfeel.experiment.sections import (
    AttackSection,
    Count,
    DataSection,
    EvaluationSection,
    Listed,
    ModelSection,
    Names,
    Own,
    Positive,
    PrivacySection,
    RobustSection,
    SamplingSection,
    Section,
    Thing,
)


class NetworkSection(Section):
    """The clients and edge servers, and how the servers are connected."""

    clients: Count = 50
    """number of clients"""
    servers: Count = 10
    """number of edge servers"""
    graph: Thing = "ring"
    """star, ring, path, complete, partial, grid, torus, geometric, erdos-renyi, a real network
    (topohub:topozoo/Abilene, with the lengths of its links), a file (links, or a table of them with
    columns mbps, ms and km; .graphml), or package.module:name (links, or a function of servers and
    rng that gives them)"""
    radius: Positive | None = None
    """geometric graph: reach of a link in the unit square (not set: enough to connect all)"""
    probability: Positive | None = None
    """erdos-renyi graph: chance of each link (not set: high enough to connect all)"""
    places: str | None = None
    """a .csv file with the longitude and latitude of every server, for pictures (not set: the
    graph's own places, if it has any)"""
    mixing: Thing = "paper"
    """how servers weight their neighbours: paper, metropolis, size-weighted, a file with a matrix
    (row = receiver; .csv, .json or .npy), or package.module:name (a matrix, or a function of links
    and masses); or a plan by which they meet few others at a time: one-peer-exponential, base-2,
    base-3, ... (exact agreement), epidemic-1, epidemic-2, ..., pairwise (at random)"""
    assignment: Thing = "random"
    """which client belongs to which server: random, by_label, ordered, a file, or
    package.module:name (a server per client, or a function of clients, servers and rng)"""
    imbalance: Annotated[int, Field(ge=0)] = 0
    """gamma: some clusters have this many clients fewer than the average, as many others more"""
    overlap: Annotated[int, Field(ge=0)] = 0
    """number of clients of each cell that reach the next cell's server, too (used by fedmes)"""
    cloud: Annotated[int, Field(ge=0)] | None = None
    """the edge server that plays the cloud, by its number (not set: the cloud stands apart, and in
    a deployment edge-0 plays it)"""
    changes: str | None = None
    """a file that says when links, servers or the cloud go down and come back"""
    link_chance: Annotated[float, Field(gt=0, le=1)] = 1.0
    """chance that a server link is up, drawn for every link in every round"""
    server_up_seconds: Positive | None = None
    """mean virtual seconds until an edge server fails (not set: none fails)"""
    server_down_seconds: Positive | None = None
    """mean virtual seconds until a failed edge server is back"""
    whereabouts: str | None = None
    """a .csv file that says where clients are and when they take part: a column `seconds` or
    `round`, a column `client`, and `server` or `longitude` and `latitude`, `available`, or
    `charging` and `wifi` (1 or 0)"""
    whereabouts_period: Positive | None = None
    """seconds (or rounds) after which the file of whereabouts begins again (not set: never)"""
    epochs: list[str] = []
    """who joins, leaves or moves, and from which round on (epochs are versions of the network,
    not passes over the data): `10: client-3=none, edge-2=edge-0+edge-1`"""


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
    """Steps that servers take towards their mixed models: see docs/schemes.md."""

    optimizer: Literal["none", "momentum", "adam", "yogi", "adagrad", "quasi-global"] = "none"
    """none (servers take over their mixed models), momentum (FedAvgM), adam (FedAdam), yogi
    (FedYogi), adagrad (FedAdagrad), or quasi-global (momentum of what gossip changes)"""
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
    """local iterations of each client; the round in which they are reached is finished"""
    learning_rate: Positive = 0.05
    """step size"""
    schedule: Thing = "constant"
    """how the learning rate changes: constant, step (schedule_options: every, factor), cosine or
    linear (down to `least`), or package.module:name (a function of the iteration and of the number
    of iterations that gives a factor); it is the same throughout a round"""
    schedule_options: dict[str, Any] = {}
    """arguments of the schedule, for example { every = 200, factor = 0.5 }"""
    schedule_unit: Literal["iteration", "round"] = "iteration"
    """what schedules and warm-up count"""
    warmup: Annotated[int, Field(ge=0)] = 0
    """iterations (or rounds) over which the learning rate grows to its full size"""
    clip_norm: Positive | None = None
    """largest norm of a mini-batch's gradient (not set: no limit)"""
    average: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """measure and return a running average of the models, of which this share is kept in each round
    (0: the newest model)"""
    batch_size: Count = 10
    """examples per step"""
    optimizer: Thing = "sgd"
    """any optimiser of torch.optim (or package.module:name, an optimiser of your own), whose state
    is forgotten at every broadcast; newton-diagonal: steps scaled by the curvature, which travels
    with the model; or shared-adam: Adam whose moments travel with the model and are averaged like
    it"""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """sgd only"""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """for every optimiser that has it"""
    proximal: Annotated[float, Field(ge=0)] = 0.0
    """pull towards the model that the round began with (FedProx, FedAsync)"""
    penalties: dict[str, float | Own] = {}
    """further terms of the loss with their strengths, for example { l1 = 0.001 }, or names of your
    own with package.module:name (a function of a tensor and of what it was when the round began)"""
    optimizer_options: dict[str, Any] = {}
    """more arguments of the optimiser, for example { nesterov = true }"""
    loss: Thing = "auto"
    """the loss to minimise: auto (as data.task says), cross-entropy, token-cross-entropy, mse, l1,
    huber, bce, or package.module:name (a function of outputs and targets that gives a mean)"""
    engine: Literal["auto", "loop", "parallel", "native", "ray", "batched"] = "auto"
    """what computes the steps: auto (the fastest that fits), loop (one core, the definition),
    parallel (loop on all cores, the same bits), native (compiled for the model, the same bits on
    every modern CPU), ray (native where it fits, otherwise loop, over a Ray cluster: the same bits
    as on one machine), batched (many clients in one kernel, for a GPU)"""
    device: Literal["cpu", "cuda", "mps"] = "cpu"
    """where the engine batched computes"""
    workers: Annotated[int, Field(ge=0, le=1000)] = 0
    """threads of the native engine, processes of parallel, actors of ray (0: one per core)"""
    target_accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    """stop as soon as this test accuracy is measured"""
    max_seconds: Positive | None = None
    """stop when the virtual clock passes this"""


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
    what travels), ditto (each client has a whole model of its own in addition to the shared one)"""
    stays: Names = []
    """tensors that never leave a client: patterns of their names, head (the last layer), norms"""
    travels: Names = []
    """the only tensors that leave a client, such as *lora*; instead of personal.stays"""
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """fedrep: share of a round's local iterations that train what stays"""
    pull: Annotated[float, Field(ge=0)] = 0.1
    """ditto: how strongly a client's own model is pulled towards the shared one (0: not at all)"""


class CheckpointSection(Section):
    """How much work is lost, at most, when the machine fails."""

    every_seconds: Annotated[float, Field(ge=0)] = 10.0
    """real seconds between two checkpoints (0: after every round)"""


class TrackingSection(Section):
    """Experiment trackers that follow the run: see docs/trackers.md."""

    to: Listed = []
    """tensorboard, mlflow, wandb, trackio, or package.module:name (a function of an event, or a
    tracker of your own)"""


# Keys of later versions: they enter the fingerprint only where they are used, for older runs.
LATER: dict[str, Any] = {
    "data": {"task", "target", "inputs", "lazy", "user", "pixels"},
    "radio": True,
    "sampling": True,
    "server": True,
    "robust": True,
    "attack": True,
    "latency": {
        "late",
        "client_server_ms",
        "server_server_ms",
        "server_cloud_ms",
        "client_cloud_ms",
        "message_ms",
        "round_ms",
        "connect_ms",
        "header_bytes",
        "calls",
        "holds",
    },
    "network": {"link_chance", "epochs"},
    "training": {
        "penalties",
        "loss",
        "schedule",
        "schedule_options",
        "schedule_unit",
        "warmup",
        "clip_norm",
        "average",
        "device",
    },
    "evaluation": {
        "metrics",
        "estimates",
        "test_examples",
        "per_client",
        "per_cluster",
        "per_client_every",
        "per_client_on",
        "own_steps",
        "confusion",
    },
    "personal": True,
    "privacy": True,
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
    sampling: SamplingSection = SamplingSection()
    server: ServerSection = ServerSection()
    robust: RobustSection = RobustSection()
    attack: AttackSection = AttackSection()
    training: TrainingSection = TrainingSection()
    latency: LatencySection = LatencySection()
    radio: RadioSection = RadioSection()
    compression: CompressionSection = CompressionSection()
    personal: PersonalSection = PersonalSection()
    privacy: PrivacySection = PrivacySection()
    devices: DevicesSection = DevicesSection()
    evaluation: EvaluationSection = EvaluationSection()
    checkpoint: CheckpointSection = CheckpointSection()
    tracking: TrackingSection = TrackingSection()

    def __init__(self, **values: Any) -> None:
        """The sections by name, each with its keys; what is left out has its default."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            # Imported here, because it reads experiments, and this is what an experiment is.
            from sdfeel.experiment.loading import sentence

            raise InputError(sentence(error)) from None

    @property
    def given(self) -> frozenset[str]:
        """Keys whose values are not their defaults. (A file of `sdfeel init` contains all keys.)"""
        usual = {name: vars(each) for name, each in DEFAULTS if isinstance(each, Section)}
        # A thing itself, such as an array, is never a default.
        plain: tuple[type, ...] = (str, int, float, list, dict, type(None))
        return frozenset(
            f"{name}.{key}"
            for name, values in usual.items()
            for key, value in vars(getattr(self, name)).items()
            if not isinstance(value, plain) or value != values[key]
        )

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides the result."""
        aside = {"checkpoint": True, "tracking": True}
        without = {**aside, **LATER, "training": {"workers", *LATER["training"]}}
        decides = self.model_dump(mode="json", exclude=without, exclude_none=True)
        used = self.model_dump(mode="json", include=LATER, exclude_defaults=True)
        if self.training.loss == "cross-entropy":  # the only one of version 0.1
            used["training"].pop("loss")
        # These came after version 0.1.
        later = "data training sampling server robust attack personal privacy"
        for section in later.split():
            if not used.get(section):
                used.pop(section, None)
        if any(used.values()):
            decides["later"] = used
        if decides["training"]["engine"] not in ("native", "ray", "batched"):  # ray may be native
            decides["training"]["engine"] = "torch"  # the others give the same bits
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    def text(self) -> str:
        """The experiment as a file."""
        return toml.document(self.model_dump(mode="json"))


DEFAULTS = Experiment()
