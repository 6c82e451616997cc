"""The keys that decide what a round costs: latency, radio and devices."""

from typing import Annotated, Literal

from pydantic import (
    Field,
)

from sdfeel.core.link_times import Link
from sdfeel.experiment.sections import (
    Count,
    NotNegative,
    Own,
    Positive,
    Section,
)


class LatencySection(Section):
    """How long things take on the virtual clock."""

    preset: Literal["paper-literal", "paper-epoch", "deployed"] = "paper-literal"
    """paper-literal (an iteration is a batch), paper-epoch (a pass over the client's data), or
    deployed (a batch, with all its operations, and models come down the links, too)"""
    samples_per_iteration: Literal["one", "batch", "all"] | None = None
    """samples whose operations one iteration is charged for (not set: as in the preset)"""
    backward_factor: Positive | None = None
    """ratio of the operations of training to those of a forward pass (not set: as in the preset)"""
    iteration_unit: Literal["batch", "epoch"] | None = None
    """what one local iteration is (not set: as in the preset)"""
    operations: Positive | None = None
    """multiply-accumulates of one sample's forward pass (not set: counted)"""
    model_bits: Positive | None = None
    """size of a model on the wire (not set: 32 bits per parameter)"""
    client_server_mbps: Positive = 5.0
    """megabits per second, client to edge server"""
    server_server_mbps: Positive = 50.0
    """megabits per second, edge server to edge server"""
    server_cloud_mbps: Positive = 5.0
    """megabits per second, edge server to cloud"""
    client_cloud_mbps: Positive = 2.5
    """megabits per second, client to cloud"""
    cell_edge_mbps: Positive = 2.06
    """megabits per second of a client that sends to several servers at once"""

    @property
    def rates(self) -> dict[Link, float]:
        """Bits per second of each kind of link."""
        return {
            "client-server": self.client_server_mbps * 1e6,
            "client-cloud": self.client_cloud_mbps * 1e6,
            "server-server": self.server_server_mbps * 1e6,
            "server-cloud": self.server_cloud_mbps * 1e6,
        }

    client_server_ms: NotNegative = 0.0
    """milliseconds that a message travels between client and edge server, in addition to the time
    that sending it takes (the paper: none)"""
    server_server_ms: NotNegative = 0.0
    """the same between edge servers; radio.links may give it for each link"""
    server_cloud_ms: NotNegative = 0.0
    """the same between edge server and cloud"""
    client_cloud_ms: NotNegative = 0.0
    """the same between client and cloud"""
    message_ms: NotNegative = 0.0
    """milliseconds that a node needs for each message that it receives, one after another"""
    round_ms: NotNegative = 0.0
    """milliseconds that every round takes in addition to everything else"""
    connect_ms: NotNegative = 0.0
    """milliseconds until nodes have found one another, in the first round"""
    header_bytes: Annotated[int, Field(ge=0)] = 0
    """bytes of every message in addition to the model"""
    cell_mbps: Positive | None = None
    """megabits per second of the line that the clients of a cell share (not set: none)"""
    common_mbps: Positive | None = None
    """megabits per second of the line that all clients share (not set: none)"""
    cores: Count | None = None
    """processors that all clients share, as in a deployment on one machine (not set: one each)"""
    downlink: bool = False
    """charge time for sending models down, too (the paper does not, the preset deployed does)"""
    calls: bool = False
    """models travel as in a deployment: every client is sent a copy of its own, and servers ask for
    what they are sent, so that requests travel, too (the paper has broadcasts that nobody asks for,
    the preset deployed has calls)"""
    holds: bool = False
    """asynchronous servers lock their neighbours' models during an exchange, as deployed ones do:
    they read one model after another, and exchanges that share a server wait for one another (the
    paper has no such waits, the preset deployed has)"""
    consensus: bool = False
    """charge for the exchanges until the servers agree at the end (the paper does not)"""
    late: Literal["wait", "drop", "drop-unbiased", "equalise"] | Own = "wait"
    """what to do about clients that would be late: wait; drop (the others count in proportion);
    drop-unbiased (the others count by one over their chance of being in time); equalise (a cell's
    clients share its bandwidth so that all end at once); or package.module:name (a policy of your
    own)"""
    deadline_seconds: Positive | None = None
    """virtual seconds from a round's start until a client is dropped"""


class RadioSection(Section):
    """The clients' channels and the servers' links: see docs/radio.md."""

    rates: str = "equal"
    """each client's mean rate: equal (latency.client_server_mbps), distance (Shannon's rate at its
    distance), whereabouts (the same, at its place in network.whereabouts), or a .csv file with a
    column `mbps` or `metres` and a row per client"""
    fading: Literal["off", "rayleigh", "nakagami"] | Own = "off"
    """how channels change from round to round; or package.module:name (a function of the clients'
    mean rates, their mean signal-to-noise ratios and the seed that gives a channel)"""
    nakagami_m: Positive = 2.0
    """nakagami: 0.5, 1 (Rayleigh), 1.5, 2, ...; the higher, the steadier"""
    correlation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """correlation of a channel with itself one round later, below 1"""
    snr_db: float | None = None
    """mean signal-to-noise ratio where rates are equal (not set: 15)"""
    trace: str | None = None
    """a .csv file of rates in Mbit/s: a column per client, a row per round (or a first column
    `seconds`); or a folder of recordings in mahimahi's format, which clients take in turn"""
    links: str | None = None
    """a .csv file of server links: `0,1,40` is 40 Mbit/s between servers 0 and 1, `0,cloud,4`
    is 4 Mbit/s from server 0 to the cloud; a first line `from,to,mbps,ms,km` names other columns
    (ms: how long a message travels; km: the same from the length of a fibre)"""
    bandwidth_mhz: Positive = 1.0
    """bandwidth of each client's own channel"""
    power_dbm: float = 23.0
    """power radiated by a client"""
    noise_dbm_per_hz: float = -174.0
    """thermal noise"""
    path_loss_db: float = 128.1
    """path loss at one kilometre"""
    path_loss_exponent: Positive = 3.76
    """how fast the loss grows with distance"""
    cell_metres: Positive = 1000.0
    """radius of a cell; clients are placed anywhere in it"""


class DevicesSection(Section):
    """How fast the clients are, and how much power they need."""

    gflops: Positive = 10.0
    """mean speed, 10^9 operations per second"""
    spread: Annotated[float, Field(ge=1)] = 1.0
    """speed of the fastest over the slowest (the mean stays the same)"""
    placement: Literal["random", "clustered", "even"] = "random"
    """where fast devices are: anywhere, together in some clusters, or evenly in all"""
    file: str | None = None
    """speeds in gflops, one per client: a CSV with a column `gflops`, bare numbers, or a column
    `device` of known names (raspberry-pi-4, jetson-nano, jetson-xavier-nx)"""
    computing_watts: Annotated[float, Field(ge=0)] = 1.0
    """power of a client while it computes"""
    sending_watts: Annotated[float, Field(ge=0)] = 0.5
    """power of a client while it sends"""
    backhaul_watts: Annotated[float, Field(ge=0)] = 5.0
    """power of a server while it sends"""
