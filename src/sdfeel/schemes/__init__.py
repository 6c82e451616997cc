"""One small file per scheme, and the table that names them."""

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from sdfeel.core.arrays import floats
from sdfeel.core.errors import InputError, told
from sdfeel.core.named import Kind
from sdfeel.core.network import Network, clustered
from sdfeel.core.scheme import Scheme, Setting, terms, tolerance
from sdfeel.schemes.adaptive import Adaptive
from sdfeel.schemes.async_sd_feel import AsyncSDFeel
from sdfeel.schemes.d_squared import DSquared
from sdfeel.schemes.fed_async import FedAsync
from sdfeel.schemes.fed_avg import FedAvg
from sdfeel.schemes.fed_buff import FedBuff
from sdfeel.schemes.fed_cs import FedCS
from sdfeel.schemes.fed_dyn import FedDyn
from sdfeel.schemes.fed_mes import FedMes
from sdfeel.schemes.fed_nova import FedNova
from sdfeel.schemes.fed_sa import FedSA
from sdfeel.schemes.feel import Feel
from sdfeel.schemes.fog_fl import FogFL
from sdfeel.schemes.free_tracking import FreeTracking
from sdfeel.schemes.hier_favg import HierFavg
from sdfeel.schemes.joint import JointScheduling
from sdfeel.schemes.k_gt import KGT
from sdfeel.schemes.mtgc import GossipMtgc, Mtgc
from sdfeel.schemes.multi_level import MultiLevelSGD
from sdfeel.schemes.safa import Safa
from sdfeel.schemes.scaffold import Scaffnew, Scaffold
from sdfeel.schemes.sd_feel import SDFeel
from sdfeel.schemes.sd_gt import SDGT
from sdfeel.schemes.tiers import Tiers

__all__ = [
    "FORMER",
    "KGT",
    "NAMED",
    "SCHEMES",
    "SDGT",
    "Adaptive",
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
    "FreeTracking",
    "GossipMtgc",
    "HierFavg",
    "JointScheduling",
    "Mtgc",
    "MultiLevelSGD",
    "SDFeel",
    "Safa",
    "Scaffnew",
    "Scaffold",
    "Tiers",
    "asynchronous",
    "described",
    "find",
    "has_lanes",
    "label",
    "lacking",
    "name_of",
    "terms",
    "tolerance",
    "trained_as",
]

SCHEMES: Mapping[str, type[Scheme]] = {
    "sd-feel": SDFeel,
    "async-sd-feel": AsyncSDFeel,
    "tiers": Tiers,
    "hierfavg": HierFavg,
    "fedavg": FedAvg,
    "feel": Feel,
    "fogfl": FogFL,
    "fedmes": FedMes,
    "multi-level": MultiLevelSGD,
    "fedasync": FedAsync,
    "fedbuff": FedBuff,
    "fedsa": FedSA,
    "safa": Safa,
    "fednova": FedNova,
    "fedcs": FedCS,
    "adaptive": Adaptive,
    "joint": JointScheduling,
    "d2": DSquared,
    "scaffold": Scaffold,
    "scaffnew": Scaffnew,
    "feddyn": FedDyn,
    "mtgc": Mtgc,
    "mtgc-gossip": GossipMtgc,
    "k-gt": KGT,
    "sd-gt": SDGT,
    "free-tracking": FreeTracking,
}


def name_of(scheme: Scheme) -> str:
    """A scheme's name in the table; a user's own scheme goes by its class name.

    >>> name_of(SDFeel())
    'sd-feel'
    """
    return label(type(scheme))


def label(given: Any) -> str:
    """What to call a scheme that is given by its name, as a class or as an object.

    >>> label("mine:Lazy"), label(SDFeel), label("fedavg")
    ('Lazy', 'sd-feel', 'fedavg')
    """
    if isinstance(given, str):
        return given.rpartition(":")[2]
    kind = given if isinstance(given, type) else type(given)
    return next((name for name, known in SCHEMES.items() if kind is known), kind.__name__)


# Options that earlier versions had, with what became of them.
FORMER: Mapping[str, str] = {
    "worth": "scheme.worth belonged to joint's old rule in version 0.1; joint now follows its "
    "authors' rule: leave scheme.worth out, or set scheme.divergence",
}


NAMED = Kind("scheme", SCHEMES, "sdfeel.schemes")


def find(given: Any) -> type[Scheme]:
    """The class of a scheme, by its name, `package.module:name`, or the scheme itself."""
    found = NAMED.find(given)
    kind: type[Scheme] = found if isinstance(found, type) else type(found)
    if kind not in SCHEMES.values() and (missing := lacking(kind)):
        raise InputError(
            f"scheme must have the methods adapt, lanes, work and mix, but {kind.__name__} lacks "
            f"{', '.join(missing)}"
        )
    return kind


def without_options(kind: type[Scheme]) -> Scheme:
    """A scheme of a user's own class that is not a dataclass."""
    try:
        return kind()
    except Exception as error:
        raise InputError(
            f"scheme {kind.__name__} cannot be made without arguments ({told(error)}): make it a "
            f"frozen dataclass, whose fields are its options"
        ) from error


PLAIN = (str, int, float, bool, type(None))


def described(given: Any) -> Any:
    """A scheme, however it was given, as its name and options; anything else as it is.

    >>> described(SDFeel(alpha=3))["name"], described(SDFeel(alpha=3))["alpha"]
    ('sd-feel', 3)
    """
    if isinstance(given, Mapping):
        more = {key: value for key, value in given.items() if key != "name"}
        own = described(given["name"]) if "name" in given else {}
        return {**own, **more}
    if isinstance(given, str):
        return {"name": given}
    kind = given if isinstance(given, type) else type(given)
    name = next((name for name, known in SCHEMES.items() if kind is known), kind)
    if isinstance(given, type):
        return {"name": name}
    if lacking(given):
        return given  # not a scheme: the caller's error
    if dataclasses.is_dataclass(given):
        options = {f.name: getattr(given, f.name) for f in dataclasses.fields(given) if f.init}
        if all(isinstance(value, PLAIN) for value in options.values()):
            return {"name": name, **options}
    return {"name": given}


@cache
def asynchronous(name: str) -> bool:
    """Do servers, or clients, continue without waiting for all the others?"""
    two, scheme = clustered(np.ones(12), np.arange(12) % 2, 1 - np.eye(2)), find(name)()
    return has_lanes(scheme, scheme.adapt(two))


def has_lanes(scheme: Scheme, net: Network) -> bool:
    """Does this scheme let servers, or clients, of a network that it has adapted continue without
    waiting for all the others?"""
    unequal = 1.0 + net.home  # seconds: some schemes wait for whoever is about as fast
    return len(scheme.lanes(Setting(net, floats(unequal)))) > 1


def trained_as(name: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The scheme that stands for all that compute the same models, so that one run is enough.

    A cloud that averages the edge servers after each of their averagings might as well average the
    clients.

    >>> trained_as("fedavg", {"tau1": 5})
    ('hierfavg', {'tau1': 5, 'tau2': 1})
    """
    if name == "fedavg" and set(options) == {"tau1"}:
        return "hierfavg", {**options, "tau2": 1}
    return name, dict(options)


def lacking(scheme: object) -> list[str]:
    """The methods that an object lacks to be a scheme."""
    return [each for each in ("adapt", "lanes", "work", "mix") if not hasattr(scheme, each)]
