"""Semi-decentralized federated edge learning: simulate it, understand it, extend it.

import sdfeel

data = sdfeel.federate((x, y), (x_test, y_test), clients=20, partition="dirichlet")
net = sdfeel.network(data, servers=4, graph="ring")
for event in sdfeel.Run(sdfeel.SDFeel(alpha=3), net, model, data, iterations=500):
    print(event)

Everything that programs need is here: data and networks, all schemes, the building blocks for your
own scheme, and the events of a run. Anything in deeper modules may change.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sdfeel.version import __version__

if TYPE_CHECKING:
    from sdfeel.api import Run, network, rerun, resume
    from sdfeel.commands import RunSet, compare, plan, sweep
    from sdfeel.core.cost import Cost, Power
    from sdfeel.core.errors import DataError, Diverged, InputError, RunError, SdfeelError
    from sdfeel.core.events import Evaluated, Event, Finished, Round, Started, Warned
    from sdfeel.core.graphs import links
    from sdfeel.core.mixing import (
        Mixing,
        Relay,
        average,
        broadcast,
        cloud_average,
        collect,
        gossip,
        of_matrix,
        of_rows,
        star,
    )
    from sdfeel.core.network import Network, Shelf, clustered
    from sdfeel.core.scheme import (
        Facts,
        Local,
        Mix,
        Scheme,
        Setting,
        View,
        Work,
        one_server,
        some_of,
    )
    from sdfeel.core.staleness import Clocks
    from sdfeel.core.tolerance import Tolerates
    from sdfeel.data.adapters import lazy
    from sdfeel.data.catalog import load as load_data
    from sdfeel.data.federated import Examples, Federated, federate, gather
    from sdfeel.engine.parts import Personal
    from sdfeel.experiment.loading import load
    from sdfeel.experiment.schema import Experiment
    from sdfeel.report.export import export
    from sdfeel.run.tracking import TrackedRun, Tracker, track
    from sdfeel.schemes import (
        KGT,
        SCHEMES,
        SDGT,
        Adaptive,
        AsyncSDFeel,
        DSquared,
        FedAsync,
        FedAvg,
        FedBuff,
        FedCS,
        FedDyn,
        FedMes,
        FedNova,
        FedSA,
        Feel,
        FogFL,
        FreeTracking,
        GossipMtgc,
        HierFavg,
        JointScheduling,
        Mtgc,
        MultiLevelSGD,
        Safa,
        Scaffnew,
        Scaffold,
        SDFeel,
        Tiers,
    )
    from sdfeel.show_runs import RunDirectory, Shown, open, show

# Imported when first used: `sdfeel --help` must not wait for torch.
_HOMES = {
    "core.cost": (
        "Cost",
        "Power",
    ),
    "core.errors": (
        "DataError",
        "Diverged",
        "InputError",
        "RunError",
        "SdfeelError",
    ),
    "core.events": (
        "Evaluated",
        "Event",
        "Finished",
        "Round",
        "Started",
        "Warned",
    ),
    "core.graphs": ("links",),
    "core.mixing": (
        "Mixing",
        "Relay",
        "average",
        "broadcast",
        "cloud_average",
        "collect",
        "gossip",
        "of_matrix",
        "of_rows",
        "star",
    ),
    "core.network": (
        "Network",
        "Shelf",
        "clustered",
    ),
    "core.scheme": (
        "Facts",
        "Local",
        "Mix",
        "Scheme",
        "Setting",
        "View",
        "Work",
        "one_server",
        "some_of",
    ),
    "core.staleness": ("Clocks",),
    "core.tolerance": ("Tolerates",),
    "data.adapters": ("lazy",),
    "data.federated": (
        "Examples",
        "Federated",
        "federate",
        "gather",
    ),
    "engine.parts": ("Personal",),
    "experiment.schema": ("Experiment",),
    "api": (
        "Run",
        "network",
        "rerun",
        "resume",
    ),
    "commands": (
        "RunSet",
        "compare",
        "plan",
        "sweep",
    ),
    "show_runs": (
        "RunDirectory",
        "Shown",
        "open",
        "show",
    ),
    "experiment.loading": ("load",),
    "report.export": ("export",),
    "run.tracking": (
        "TrackedRun",
        "Tracker",
        "track",
    ),
    "schemes": (
        "SCHEMES",
        "Adaptive",
        "FreeTracking",
        "GossipMtgc",
        "KGT",
        "SDGT",
        "Mtgc",
        "Scaffnew",
        "Scaffold",
        "AsyncSDFeel",
        "DSquared",
        "FedAsync",
        "FedAvg",
        "FedBuff",
        "FedCS",
        "FedDyn",
        "FedMes",
        "FedNova",
        "FedSA",
        "Feel",
        "FogFL",
        "HierFavg",
        "JointScheduling",
        "MultiLevelSGD",
        "SDFeel",
        "Safa",
        "Tiers",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_RENAMED = {"load_data": ("data.catalog", "load")}  # where `load` alone would say too little

__all__ = [
    "KGT",
    "SCHEMES",
    "SDGT",
    "Adaptive",
    "AsyncSDFeel",
    "Clocks",
    "Cost",
    "DSquared",
    "DataError",
    "Diverged",
    "Evaluated",
    "Event",
    "Examples",
    "Experiment",
    "Facts",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedCS",
    "FedDyn",
    "FedMes",
    "FedNova",
    "FedSA",
    "Federated",
    "Feel",
    "Finished",
    "FogFL",
    "FreeTracking",
    "GossipMtgc",
    "HierFavg",
    "InputError",
    "JointScheduling",
    "Local",
    "Mix",
    "Mixing",
    "Mtgc",
    "MultiLevelSGD",
    "Network",
    "Personal",
    "Power",
    "Relay",
    "Round",
    "Run",
    "RunDirectory",
    "RunError",
    "RunSet",
    "SDFeel",
    "Safa",
    "Scaffnew",
    "Scaffold",
    "Scheme",
    "SdfeelError",
    "Setting",
    "Shelf",
    "Shown",
    "Started",
    "Tiers",
    "Tolerates",
    "TrackedRun",
    "Tracker",
    "View",
    "Warned",
    "Work",
    "__version__",
    "average",
    "broadcast",
    "cloud_average",
    "clustered",
    "collect",
    "compare",
    "export",
    "federate",
    "gather",
    "gossip",
    "lazy",
    "links",
    "load",
    "load_data",
    "network",
    "of_matrix",
    "of_rows",
    "one_server",
    "open",
    "plan",
    "rerun",
    "resume",
    "show",
    "some_of",
    "star",
    "sweep",
    "track",
]


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        home, own = _RENAMED[name]
        return getattr(import_module(f"sdfeel.{home}"), own)
    if name not in _HOME_OF:
        raise AttributeError(f"module 'sdfeel' has no attribute {name!r}")
    return getattr(import_module(f"sdfeel.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
