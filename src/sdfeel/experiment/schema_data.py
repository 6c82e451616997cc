"""The sections about what is learned: data, model, and how it is measured."""

from typing import Annotated, Any, Literal

from pydantic import Field

from sdfeel.experiment.sections import Count, NamedSection, Names, Positive, Section, Thing, Things


class DataSection(NamedSection):
    """Which data, and how they are split over the clients."""

    name: Thing = "digits"
    """digits (built in), mnist, fashion-mnist, cifar10, an .npz, .csv or .parquet file, a folder of
    tables or of pictures, or package.module:name (train and test data, or a function that gives
    them)"""
    directory: str | None = None
    """where the files are (not set: the user's cache; see `sdfeel data`)"""
    partition: Thing = "classes"
    """classes (exactly classes_per_client each), shards, dirichlet, iid, users (everyone whom the
    column data.user names is a client, and network.clients has no effect), a file, or
    package.module:name (a function of labels, clients and rng)"""
    classes_per_client: Count = 2
    """classes that each client holds (classes, shards)"""
    concentration: Positive = 0.5
    """dirichlet: smaller is more uneven"""
    balance: bool = False
    """dirichlet: stop filling clients that have their share"""
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
    """the column that says whose example it is: no input, but what data.partition = users goes by.
    In a folder of tables, `file` is such a column; in one of pictures `folder`, above the class"""
    pixels: Count | None = None
    """a folder of pictures: the width and height that all are brought to (not set: as they are)"""
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
    report then shows the bound of Theorem 1 beside them"""
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
    """rounds between two measurements per client or cluster, or after own steps (0: as often as the
    cost stays low)"""
    per_client_on: Literal["auto", "train", "test"] = "auto"
    """a client's own examples are those it trains on (train), those it has for testing (test), or
    the latter if it has any (auto)"""
    own_steps: Annotated[int, Field(ge=0)] = 0
    """also measure what each client makes of the model in this many local steps of its own, with
    the metrics of per_client, on its own test examples, or on those of its classes (0: not)"""
    confusion: bool = True
    """count after the last round which classes the model takes for which (up to 100 classes)"""
