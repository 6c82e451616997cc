"""Semi-decentralized federated edge learning: simulate it, understand it, extend it.

import sdfeel

data = sdfeel.federate((x, y), (x_test, y_test), clients=20, partition="dirichlet")
net = sdfeel.network(data, servers=4, graph="ring")
for event in sdfeel.Run(sdfeel.SDFeel(alpha=3), net, model, data, iterations=500):
    print(event)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sdfeel.version import __version__

if TYPE_CHECKING:
    from sdfeel.core.errors import SdfeelError
    from sdfeel.core.events import Evaluated, Finished, Round, Started, Warned
    from sdfeel.core.network import Network, clustered
    from sdfeel.data.federated import Federated, federate, gather
    from sdfeel.experiment.schema import Experiment
    from sdfeel.run.api import Run, network
    from sdfeel.schemes import SCHEMES, AsyncSDFeel, FedAvg, Feel, HierFavg, SDFeel

# Imported when first used: `sdfeel --help` must not wait for torch.
_HOMES = {
    "SdfeelError": "core.errors",
    "Evaluated": "core.events",
    "Finished": "core.events",
    "Round": "core.events",
    "Started": "core.events",
    "Warned": "core.events",
    "Network": "core.network",
    "clustered": "core.network",
    "Federated": "data.federated",
    "federate": "data.federated",
    "gather": "data.federated",
    "Run": "run.api",
    "network": "run.api",
    "Experiment": "experiment.schema",
    "SCHEMES": "schemes",
    "AsyncSDFeel": "schemes",
    "FedAvg": "schemes",
    "Feel": "schemes",
    "HierFavg": "schemes",
    "SDFeel": "schemes",
}

__all__ = [
    "SCHEMES",
    "AsyncSDFeel",
    "Evaluated",
    "Experiment",
    "FedAvg",
    "Federated",
    "Feel",
    "Finished",
    "HierFavg",
    "Network",
    "Round",
    "Run",
    "SDFeel",
    "SdfeelError",
    "Started",
    "Warned",
    "__version__",
    "clustered",
    "federate",
    "gather",
    "network",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sdfeel' has no attribute {name!r}")
    return getattr(import_module(f"sdfeel.{_HOMES[name]}"), name)
