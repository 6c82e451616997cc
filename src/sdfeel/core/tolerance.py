"""What a scheme does with an experiment's options: it uses, ignores or refuses them.

Each scheme declares this in its own file. Whoever prepares a run asks here, before anything starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sdfeel.core.errors import InputError
from sdfeel.core.link_times import Link

YES, IGNORED = "yes", "ignored"
Asked = Sequence[tuple[str, str]]  # options, each with the key that sets it
EDGE: tuple[Link, ...] = ("client-server", "server-server")
EDGE_AND_CLOUD: tuple[Link, ...] = ("client-server", "server-cloud")
CELLS: tuple[Link, ...] = ("client-server",)
CLOUD: tuple[Link, ...] = ("client-cloud",)


@dataclass(frozen=True)
class Tolerates:
    """For every option 'yes', 'ignored', or what the scheme needs instead, as half a sentence.

    What follows from `links` need not be declared: options about links on which no model travels
    are ignored. `shares` means that the scheme itself divides a cell's bandwidth among its clients.
    """

    links: tuple[Link, ...] = (*EDGE, "server-cloud", "client-cloud")  # that models travel on
    shares: bool = False
    graph: str = YES
    mixing: str = YES
    peers: str = YES
    overlap: str = YES
    changing_links: str = YES
    changing_servers: str = YES
    absent_cloud: str = YES
    cloud_server: str = YES
    moving_clients: str = YES
    absent_clients: str = YES
    server_rates: str = YES
    cloud_rates: str = YES
    sampling: str = YES
    drop: str = YES
    drop_unbiased: str = YES
    equalise: str = YES
    uplink: str = YES
    backhaul: str = YES
    server_optimizer: str = YES
    cluster_rule: str = YES
    server_rule: str = YES
    personal: str = YES
    fedrep: str = YES
    private: str = YES

    @property
    def central(self) -> bool:
        """Is the scheme's only server the cloud?"""
        return "client-cloud" in self.links and "client-server" not in self.links

    def verdict(self, option: str) -> str:
        """What the scheme does with one of OPTIONS.

        >>> Tolerates(CLOUD).verdict("mixing"), Tolerates(EDGE).verdict("mixing")
        ('ignored', 'yes')
        """
        if option == "peers" and self.mixing == IGNORED:
            return IGNORED
        carried = OPTIONS[option].carried
        said = str(getattr(self, option))
        return said if not carried or set(carried) & set(self.links) else IGNORED


@dataclass(frozen=True)
class Only:
    """Annotates a scheme's option that matters only where `key` has one of these values."""

    key: str  # `scheme.psi`, say
    values: tuple[str | None, ...] = ()  # none: whatever is not the default

    @property
    def otherwise(self) -> str:
        """When the option does not matter, in words."""
        if self.key == SERVERS:
            return "with one edge server"
        if self.values == (None,):
            return f"together with {self.key}"
        told = " or ".join(map(str, self.values))
        return f"without {self.key} = {told}" if told else f"without {self.key}"


SERVERS = "network.servers"
AMONG_SERVERS = Only(SERVERS)  # an option about what several edge servers do together


@dataclass(frozen=True)
class Option:
    """Something that an experiment may ask for."""

    keys: str  # how to set it
    effect: str  # what it does, after "but KEY ..."
    instead: str  # what to do where a scheme refuses it; {key} is what was given
    carried: tuple[Link, ...] = ()  # it is about these links


ACROSS: tuple[Link, ...] = ("server-server",)
OPTIONS: Mapping[str, Option] = {
    "graph": Option("network.graph", "chooses the links", "leave out {key}", ACROSS),
    "mixing": Option("network.mixing", "weights neighbours", "leave out {key}", ACROSS),
    "peers": Option(
        "network.mixing (a sequence)", "changes who meets whom", "choose another {key}", ACROSS
    ),
    "overlap": Option(
        "network.overlap", "puts clients into several cells", "leave out {key}", CELLS
    ),
    "changing_links": Option(
        "network.link_chance, network.changes (links)",
        "lets links come and go",
        "leave out {key}",
        ACROSS,
    ),
    "changing_servers": Option(
        "network.server_up_seconds, network.changes (servers)",
        "lets servers come and go",
        "leave out {key}",
        CELLS,
    ),
    "absent_cloud": Option(
        "network.changes (the cloud)",
        "takes the cloud away",
        "leave the cloud out of {key}",
        ("server-cloud", "client-cloud"),
    ),
    "cloud_server": Option(
        "network.cloud", "lets a server play the cloud", "leave out {key}", ("server-cloud",)
    ),
    "moving_clients": Option(
        "network.whereabouts (moves)",
        "lets clients change their servers",
        "leave moves out of network.whereabouts",
        CELLS,
    ),
    "absent_clients": Option(
        "network.whereabouts (absences)",
        "lets clients come and go",
        "leave absences out of network.whereabouts",
    ),
    "server_rates": Option(
        "radio.links (between servers)", "gives links different rates", "leave out {key}", ACROSS
    ),
    "cloud_rates": Option(
        "radio.links (to the cloud)",
        "gives links different rates",
        "leave out {key}",
        ("server-cloud",),
    ),
    "sampling": Option(
        "sampling.clients, sampling.share",
        "draws some of the clients for each round",
        "leave out {key}",
    ),
    "drop": Option("latency.late = drop", "loses uploads", "set latency.late to wait"),
    "drop_unbiased": Option(
        "latency.late = drop-unbiased",
        "weights those that arrive by their chances",
        "set latency.late to drop",
    ),
    "equalise": Option(
        "latency.late = equalise", "shares the bandwidth of a cell", "set latency.late to wait"
    ),
    "uplink": Option(
        "compression.uplink", "rounds what clients send", "set compression.uplink to none"
    ),
    "backhaul": Option(
        "compression.backhaul",
        "rounds what servers send",
        "set compression.backhaul to none",
        ACROSS,
    ),
    "server_optimizer": Option(
        "server.optimizer", "lets servers take steps of their own", "set server.optimizer to none"
    ),
    "cluster_rule": Option(
        "robust.cluster", "compares what clients send", "set robust.cluster to none"
    ),
    "server_rule": Option(
        "robust.servers", "compares what servers send", "set robust.servers to none", ACROSS
    ),
    "personal": Option(
        "personal.method", "gives clients models of their own", "set personal.method to none"
    ),
    "fedrep": Option(
        "personal.method = fedrep",
        "trains what travels in only some of a round's iterations",
        "set personal.method to fedper",
    ),
    "private": Option(
        "privacy.protects", "bounds what others learn", "set privacy.protects to nothing"
    ),
}


def check(name: str, tolerates: Tolerates, asked: Asked, others: Mapping[str, Tolerates]) -> None:
    """InputError for the first option that the scheme refuses, with a scheme that takes it.

    `others` are the schemes to recommend.
    """
    for option, key in asked:
        said = tolerates.verdict(option)
        if said not in (YES, IGNORED):
            about = OPTIONS[option]
            raise InputError(
                f"scheme.name = {name} {said}, but {key} {about.effect}: "
                f"{about.instead.format(key=key)}{_recommended(asked, others)}"
            )


def ignored(tolerates: Tolerates, asked: Asked) -> list[str]:
    """The keys of options that are set and make no difference.

    >>> ignored(Tolerates(CLOUD), [("mixing", "network.mixing"), ("drop", "latency.late")])
    ['network.mixing']
    """
    return [key for option, key in asked if tolerates.verdict(option) == IGNORED]


def _recommended(asked: Asked, others: Mapping[str, Tolerates]) -> str:
    """The first scheme that uses everything that is set."""
    for name, tolerates in others.items():
        if all(tolerates.verdict(option) == YES for option, _ in asked):
            return f", or choose {name}"
    return ""
