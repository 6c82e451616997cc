"""What an experiment's sections are made of: kinds of values, and names that stand for objects.

The sections about what is learned (data, model, measuring) and about trust (robust rules, attacks,
privacy) are here, too; `schema.py` has the others.
"""

from collections.abc import Mapping
from pathlib import PurePath
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

from sdfeel.core import named

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


def _several(given: Any) -> Any:
    """A list, from words with commas between them (as on the command line) or from a tuple."""
    if isinstance(given, str):
        return given.split(",")
    return list(given) if isinstance(given, tuple) else given


Names = Annotated[list[str], BeforeValidator(_several)]


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
    return named.recorded_name(thing) if info.mode == "json" else thing


_RECORDED = (PlainSerializer(_kept), WithJsonSchema({"type": "string"}))
# A name, `package.module:name`, or the thing itself: `core.named`.
Thing = Annotated[Any, BeforeValidator(_nameable), *_RECORDED]
Own = Annotated[Any, BeforeValidator(_own), *_RECORDED]  # all but a plain name


def _labelled(given: Any) -> Any:
    """Things by name; those of a list, or of words with commas, by the last part of their own."""
    if isinstance(given, Mapping):
        return given
    listed = given.split(",") if isinstance(given, str) else given
    listed = listed if isinstance(listed, list | tuple) else [listed]
    labels = [_label(each) for each in listed]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise PydanticCustomError(
            "string_twice", "things of different names (two are called {name})", {"name": twice}
        )
    return dict(zip(labels, listed, strict=True))


def _label(thing: Any) -> str:
    name = thing if isinstance(thing, str) else getattr(thing, "__name__", type(thing).__name__)
    return str(name).rpartition(":")[2]


Things = Annotated[dict[str, Thing], BeforeValidator(_labelled)]


Listed = Annotated[list[Thing], BeforeValidator(_several)]  # whose names do not matter


class Section(BaseModel):
    """A frozen table that refuses keys it does not know."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,  # neither `true` nor "3" is a number
        protected_namespaces=(),  # older versions of pydantic warn about names like `model_bits`
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _paths_as_text(cls, given: Any) -> Any:
        """Paths, by which programs name files, become the text that an experiment's file has."""
        if not isinstance(given, Mapping):
            return given
        return {key: str(v) if isinstance(v, PurePath) else v for key, v in given.items()}


class NamedSection(Section):
    """A section that a name may stand for: `model = "mlp"` means `model.name = "mlp"`."""

    @model_validator(mode="before")
    @classmethod
    def _of_name(cls, given: Any) -> Any:
        whole = isinstance(given, Mapping | Section | int | float | type(None))
        return given if whole else {"name": given}


class DataSection(NamedSection):
    """Which data, and how they are split over the clients."""

    name: Thing = "digits"
    """digits (built in), mnist, fashion-mnist, cifar10, an .npz, .csv or .parquet file, a folder of
    tables or of pictures, or package.module:name (train and test data, or a function that gives
    them)"""
    directory: str | None = None
    """where the files are (not set: the user's cache; see `sdfeel data`)"""
    partition: Thing = "classes"
    """classes (exactly classes_per_client each), shards, dirichlet, iid, users (one client for
    everyone in the column data.user, whatever network.clients is), a file, or package.module:name
    (a function of labels, clients and rng)"""
    classes_per_client: Count = 2
    """classes that each client holds (classes, shards)"""
    concentration: Positive = 0.5
    """dirichlet: smaller is more uneven"""
    balance: bool = False
    """dirichlet: give no more examples to clients that have their share"""
    min_size: Annotated[int, Field(ge=1)] = 10
    """dirichlet: draw again while a client has fewer examples"""
    task: Literal["auto", "classification", "regression", "labelling", "language"] = "auto"
    """classification, regression, labelling (a class for every place of a sequence) or language
    (the next token); auto: as the targets say. It decides what `auto` is in training.loss"""
    target: str | None = None
    """where examples have named columns: the one to predict (not set: label, target or y)"""
    inputs: Names = []
    """the columns that a model is given (none: input_ids, image or x, or all others)"""
    user: str | None = None
    """the column that says whose example it is; it is not an input of the model, and
    data.partition = users splits by it. In a folder of tables, `file` is such a column; in a folder
    of pictures, `folder` (the one above the class) is"""
    pixels: Count | None = None
    """a folder of pictures: the width and height that all are resized to (not set: as they are)"""
    lazy: bool = False
    """read training examples anew at every step, so that random augmentation stays random; it is
    seeded by seed, client, step and place in the batch"""


class ModelSection(NamedSection):
    """The model to train."""

    name: Thing = "auto"
    """auto (what suits the data), mnist-cnn, cifar-cnn, mlp, logistic, or package.module:name"""
    options: dict[str, Any] = {}
    """arguments of the model, for example { hidden = 128 }"""


class EvaluationSection(Section):
    """When and on what the model is measured."""

    every: Annotated[int, Field(ge=0)] = 0
    """rounds between two measurements (0: about 25 in the run, fewer if they would cost much)"""
    train_examples: Annotated[int, Field(ge=0)] = 2000
    """number of examples for measuring the training loss, drawn once (0: all)"""
    estimates: bool = False
    """also measure gradients, L, sigma^2 and kappa^2, with three gradients of every client; the
    report then shows the bound of Theorem 1 next to them"""
    test_examples: Annotated[int, Field(ge=0)] = 0
    """number of examples for measuring the accuracy, drawn once (0: all)"""
    metrics: Things = {}
    """further metrics on the test data: accuracy, loss, mae, rmse, r2, top-5, perplexity, or
    package.module:name (a function of outputs and targets)"""
    per_client: Names = []
    """metrics on every client's own examples (accuracy, loss): their mean over clients, their worst
    tenth and their spread are reported"""
    per_cluster: Names = []
    """metrics on the examples of every server's clients, like per_client"""
    per_client_every: Annotated[int, Field(ge=0)] = 0
    """rounds between two measurements per client or cluster, or after own steps (0: as often as
    is cheap)"""
    per_client_on: Literal["auto", "train", "test"] = "auto"
    """a client's own examples are those it trains on (train), those it has for testing (test), or
    the latter if it has any (auto)"""
    own_steps: Annotated[int, Field(ge=0)] = 0
    """also measure what each client makes of the model in this many local steps of its own, with
    the metrics of per_client, on its own test examples, or on those of its classes (0: off)"""
    confusion: bool = True
    """after the last round, count which classes the model takes for which (up to 100 classes)"""


class RobustSection(Section):
    """Rules by which servers withstand clients and servers that lie: see docs/liars.md."""

    cluster: (
        Literal[
            "none", "median", "trimmed-mean", "geometric-median", "multi-krum", "centred-clipping"
        ]
        | Own
    ) = "none"
    """what an edge server makes of its clients' models: none (their mean), median, trimmed-mean,
    geometric-median, multi-krum, centred-clipping, or package.module:name (a function of messages,
    votes and the row that they replace)"""
    servers: Literal["none", "clipped-gossip", "cs+"] | Own = "none"
    """what an edge server makes of its neighbours' models: none (their mean), clipped-gossip, cs+,
    or package.module:name"""
    votes: Literal["equal", "examples"] = "equal"
    """how much a client counts under a rule: equal (one vote each), or by its examples"""
    liars: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    """trimmed-mean, multi-krum, nearest-neighbours: share of a cluster's clients that may lie"""
    before: Literal["none", "nearest-neighbours"] = "none"
    """what is done to clients' models before the rule: none, or nearest-neighbours (each is mixed
    with those most like it, for clients with different data)"""
    server_liars: Annotated[int, Field(ge=0)] = 1
    """cs+: neighbours of a server that may lie"""
    radius: Positive | None = None
    """centred-clipping, clipped-gossip: the greatest length of a difference (not set: the median of
    those that arrive)"""
    steps: Count = 3
    """geometric-median, centred-clipping: steps towards the result"""


class AttackSection(Section):
    """Clients and edge servers that lie, to see what a run withstands: see docs/liars.md."""

    kind: Literal[
        "none",
        "sign-flip",
        "scaling",
        "little-is-enough",
        "inner-product",
        "label-flip",
        "backdoor",
    ] = "none"
    """what liars send: none (nobody lies), sign-flip (their update the other way round), scaling
    (many times their update), little-is-enough (the honest mean and a few standard deviations),
    inner-product (the honest mean the other way round), label-flip (trained on false labels),
    backdoor (trained to take examples with a bright corner for attack.target)"""
    clients: Annotated[int, Field(ge=0)] = 0
    """clients that lie"""
    servers: Annotated[int, Field(ge=0)] = 0
    """edge servers that lie to other servers (sign-flip, scaling)"""
    placement: Literal["even", "together"] = "even"
    """where lying clients are: evenly in all clusters, or together in as few as possible"""
    who: Names = []
    """who lies, for example client-3,edge-0 (none: drawn, as many as the keys above say)"""
    strength: Positive | None = None
    """how many times the update, the standard deviation or the honest mean liars send (not set: 10
    for scaling, 1.5 for little-is-enough, 2 for inner-product, otherwise 1)"""
    target: Annotated[int, Field(ge=0)] = 0
    """backdoor: the class that examples with the trigger should be taken for"""


class SamplingSection(Section):
    """How many clients take part in a round: see docs/methods.md."""

    clients: Count | None = None
    """how many of its clients every server draws in each round (not set: sampling.share decides);
    all clients of a server take part if it has no more than that"""
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """share of its clients that every server draws in each round, but at least one (1: all)"""


class PrivacySection(Section):
    """What others may learn about clients or their examples: see docs/privacy.md."""

    protects: Literal["nothing", "clients", "examples"] = "nothing"
    """nothing; clients (each update is clipped and gets noise before it leaves its client); or
    examples (DP-SGD: in every step, each example's gradient is clipped and their sum gets noise)"""
    clip: Positive | None = None
    """the greatest length of a client's update, or of one example's gradient (not set: 1, and
    for clients less where the noise of all rounds together would be longer than the model)"""
    noise: Annotated[float, Field(ge=0)] = 1.0
    """standard deviation of the noise, as a multiple of privacy.clip"""
    noise_in: Literal["message", "sum"] = "message"
    """clients: whether each client's message has this much noise, or only the sum of a server's
    clients (each adds its share, so only the sum is protected to that degree)"""
    secure_aggregation: bool = False
    """clients hide their updates under masks that cancel in the sum of a cluster: their edge server
    learns the sum alone"""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """the chance that epsilon fails to hold; choose less than one over the number of clients or of
    examples"""
