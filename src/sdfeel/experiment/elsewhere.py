"""What things are called elsewhere: names from papers and other programs lead to our keys."""

from collections.abc import Iterator
from contextlib import contextmanager

from sdfeel.core.errors import InputError, UnknownName

# What things are called in papers and in other programs, and what stands for them here.
ELSEWHERE = {
    "alpha": "data.concentration (Dirichlet), or scheme.alpha (exchanges between servers)",
    "batchsize": "training.batch_size",
    "bs": "training.batch_size",
    "clients_per_round": "scheme.participants",
    "cuda": "batched, with training.device = cuda",
    "dataset": "data.name",
    "device": "training.device, for training.engine = batched",
    "dirichlet_alpha": "data.concentration",
    "epochs": "training.iterations (see latency.iteration_unit)",
    "eta": "training.learning_rate",
    "fedadagrad": "server.optimizer = adagrad",
    "fedadam": "server.optimizer = adam",
    "fedavgm": "server.optimizer = momentum",
    "fedprox": "training.proximal, with any scheme such as fedavg",
    "fedyogi": "server.optimizer = yogi",
    "fraction_fit": "scheme.participants",
    "gamma": "training.schedule_options = { factor = ... }, or network.imbalance",
    "global_rounds": "training.iterations",
    "gpu": "batched, with training.device = cuda",
    "hierfl": "hierfavg",
    "local_epochs": "scheme.tau1",
    "local_steps": "scheme.tau1",
    "lr": "training.learning_rate",
    "lr_scheduler": "training.schedule",
    "max_grad_norm": "training.clip_norm",
    "min_available_clients": "scheme.participants",
    "mu": "training.proximal",
    "n_clients": "network.clients",
    "noniid": "data.partition = dirichlet or classes",
    "num_clients": "network.clients",
    "num_rounds": "training.iterations",
    "num_servers": "network.servers",
    "num_users": "network.clients",
    "optim": "training.optimizer",
    "optimiser": "training.optimizer",
    "participation": "scheme.participants",
    "proximal_mu": "training.proximal",
    "random_seed": "seed",
    "rounds": "training.iterations",
    "scheduler": "training.schedule",
    "strategy": "scheme.name",
    "topology": "network.graph",
    "wd": "training.weight_decay",
}


KINDS = ("key", "scheme", "scheme to plan", "server optimizer", "engine", "partition")


def hinted(error: UnknownName) -> InputError:
    """The same error; what is called so elsewhere is told in our words.

    >>> from sdfeel.core.errors import unknown
    >>> print(hinted(unknown("key", "training.lr", ["training.batch_size"])))
    unknown key 'training.lr': here it is training.learning_rate (known: training.batch_size)
    """
    word = error.value.lower().rpartition(".")[2].replace("-", "_")
    if word not in ELSEWHERE or error.kind not in KINDS:
        return error
    known = ", ".join(error.known)
    return InputError(
        f"unknown {error.kind} '{error.value}': here it is {ELSEWHERE[word]} (known: {known})"
    )


@contextmanager
def in_our_words() -> Iterator[None]:
    """Errors about names that layers below do not know are hinted."""
    try:
        yield
    except UnknownName as error:
        raise hinted(error) from None
