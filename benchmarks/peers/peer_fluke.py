"""fluke: clients one after another in one process.

fluke imports torchvision, wandb and others for things that are not used here (data sets,
ResNets, loggers). torchvision's wheels need a CUDA build of torch, so all of these are stubs.
"""

import importlib.abc
import importlib.machinery
import sys
from importlib.metadata import version
from time import perf_counter
from types import ModuleType
from unittest.mock import MagicMock

STUBS = {"torchvision", "wandb", "clearml", "opacus", "datasets"}


class Stub(ModuleType):
    __path__ = ()

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name[:1].isupper() else MagicMock(name=name)


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.split(".")[0] in STUBS:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Stubs())

import torch  # noqa: E402
import work  # noqa: E402
from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms import CentralizedFL  # noqa: E402
from fluke.client import Client  # noqa: E402
from fluke.config import OptimizerConfigurator  # noqa: E402
from fluke.data import FastDataLoader  # noqa: E402
from fluke.server import Server  # noqa: E402
from fluke.utils import FederationObserver  # noqa: E402
from net import net  # noqa: E402

torch.set_num_threads(1)


class Clock(FederationObserver):
    """When rounds begin."""

    def __init__(self) -> None:
        self.begins: list[float] = []

    def start_round(self, round, global_model) -> None:
        self.begins.append(perf_counter())


def main() -> None:
    env = FlukeENV()
    env.set_seed(0)
    optimizer = OptimizerConfigurator(
        optimizer_cfg=DDict(name=torch.optim.SGD, lr=work.RATE),
        scheduler_cfg=DDict(name="StepLR", step_size=1, gamma=1.0),
    )
    clients = [
        Client(
            index=n,
            train_set=FastDataLoader(
                *map(torch.from_numpy, own),
                num_labels=work.CLASSES,
                batch_size=work.BATCH,
                shuffle=True,
                # fluke counts in passes over the data: of this share, one has STEPS batches.
                percentage=work.STEPS * work.BATCH / work.EXAMPLES,
            ),
            test_set=None,
            optimizer_cfg=optimizer,
            loss_fn=torch.nn.CrossEntropyLoss(),
            local_epochs=1,
        )
        for n, own in enumerate(work.data())
    ]
    assert len(clients[0].train_set) == work.STEPS
    server, clock = Server(net(), None, clients), Clock()
    federation = CentralizedFL(len(clients), None, {}, clients=clients, server=server)
    federation.set_callbacks(clock)
    federation.run(work.COLD + work.WARM, eligible_perc=1.0, finalize=False)
    clock.begins.append(perf_counter())
    work.report("fluke", version("fluke-fl"), clock.begins)


if __name__ == "__main__":
    main()
