"""pfl-research: one process, or one per core when started by torchrun."""

import os
import sys
from importlib.metadata import version
from time import perf_counter

import torch
import work
from net import net
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn

torch.set_num_threads(1)


class Net(nn.Module):
    """What pfl asks of a module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.train()
        return nn.functional.cross_entropy(self.inner(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict:
        return {}


class Clock(TrainingProcessCallback):
    """When rounds end."""

    def __init__(self) -> None:
        self.begins = [perf_counter()]

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.begins.append(perf_counter())
        return False, Metrics()


def main() -> None:
    clients = [tuple(map(torch.from_numpy, own)) for own in work.data()]
    turn = -1

    def sample() -> int:
        nonlocal turn
        turn += 1
        return turn % work.CLIENTS

    def make(n: int) -> Dataset:
        order = torch.randperm(work.EXAMPLES)
        x, y = clients[n]
        return Dataset([x[order], y[order]], user_id=str(n))

    module = Net()
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    federated = FederatedDataset(make, sample)
    algorithm, clock = FederatedAveraging(), Clock()
    algorithm.run(
        NNAlgorithmParams(
            central_num_iterations=work.COLD + work.WARM,
            evaluation_frequency=10**6,
            train_cohort_size=work.CLIENTS,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=federated, val_data=federated),
        model,
        NNTrainHyperParams(
            local_num_epochs=None,
            local_num_steps=work.STEPS,
            local_learning_rate=work.RATE,
            local_batch_size=work.BATCH,
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[clock],
    )
    if pytorch_ops.distributed is None or pytorch_ops.distributed.global_rank == 0:
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        name = "pfl" if processes == 1 else f"pfl-{processes}-processes"
        work.report(name, version("pfl"), clock.begins)


if __name__ == "__main__":
    sys.exit(main())
