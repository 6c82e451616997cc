"""From an experiment to its channels, its late clients and its changing server graph."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from sdfeel.core import named
from sdfeel.core.arrays import Floats, floats
from sdfeel.core.cost import Channel, Cost, Overheads
from sdfeel.core.errors import InputError, unknown
from sdfeel.core.gossip_weights import GOSSIP_RULES
from sdfeel.core.link_times import SNR, Link
from sdfeel.core.network import Network
from sdfeel.core.outages import Change, Outages, check, schedule
from sdfeel.core.scheme import Scheme
from sdfeel.core.seeds import rng
from sdfeel.core.stragglers import Policy, StragglerPolicy
from sdfeel.core.tolerance import OPTIONS, YES
from sdfeel.core.whereabouts import Whereabouts
from sdfeel.experiment.build_network import server_graph
from sdfeel.experiment.effects import Case, Rates
from sdfeel.experiment.files import clients_table, mahimahi_table, text_of, trace_table
from sdfeel.experiment.read_whereabouts import build_whereabouts, used_whereabouts
from sdfeel.experiment.real_networks import ServerGraph, links_table
from sdfeel.experiment.schema import (
    Experiment,
    LatencySection,
    NetworkSection,
    RadioSection,
    given_keys,
)
from sdfeel.radio.channel import (
    NEAREST,
    Cell,
    Fading,
    Moving,
    Trace,
    efficiency,
    scattered,
    snr_of,
)
from sdfeel.schemes import tolerance

MOST = 40.0  # bits per second and hertz: no radio sends more
LEAST = 1e-3  # and at less than this, nobody would send a model


def with_radio(priced: Cost, experiment: Experiment, net: Network) -> Cost:
    """The same prices, with the experiment's channels and links."""
    section, clients = experiment.radio, len(net.samples)
    nominal = priced.rates["client-server"]
    real = server_graph(experiment)
    if real is not None:
        priced = _with_links(priced, real, net)
    if section.links is not None:
        own = links_table(text_of(section.links), section.links, net.links)
        priced = _with_links(priced, own, net)
    if section.trace is not None:
        return _with_trace(priced, section, clients, nominal)
    if section.rates == "whereabouts":
        return _with_places(priced, experiment, net)
    if section.rates != "equal":
        snr = _mean_snr(experiment, clients)
        carried = section.bandwidth_mhz * 1e6 * efficiency(snr)
        priced = replace(priced, snr=snr, client_rates=floats(carried / nominal))
    elif section.snr_db is not None:
        priced = replace(priced, snr=floats(np.full(clients, 10 ** (section.snr_db / 10))))
    if isinstance(section.fading, str) and section.fading == "off":
        return priced
    radio = np.ones(clients) if priced.client_rates is None else priced.client_rates
    snr = np.full(clients, SNR) if priced.snr is None else priced.snr
    if not isinstance(section.fading, str) or named.is_path(section.fading):
        return replace(priced, channel=_own_channel(section.fading, radio, snr, experiment.seed))
    return replace(priced, channel=_fading(section, radio, snr, experiment.seed))


def _fading(section: RadioSection, rates: Floats, snr: Floats, seed: int) -> Fading:
    m = section.nakagami_m if section.fading == "nakagami" else 1.0
    return Fading(rates, snr, m, section.correlation, seed)


def _with_places(priced: Cost, experiment: Experiment, net: Network) -> Cost:
    """Rates that follow where network.whereabouts says that clients are."""
    section, name = experiment.radio, experiment.network.whereabouts
    found = None if name is None else build_whereabouts(experiment.network, name, net)
    if name is None or found is None or found.metres is None:
        raise InputError(
            "radio.rates is whereabouts, but nobody says where clients are: give "
            "network.whereabouts a file with longitude and latitude"
        )
    if not isinstance(section.fading, str) or named.is_path(section.fading):
        raise InputError(
            "radio.fading is a channel of your own, which learns the clients' mean rates once, "
            "but radio.rates is whereabouts: let that channel follow the places itself, with "
            "radio.rates=equal"
        )
    if experiment.latency.late == "drop-unbiased":
        raise InputError(
            "latency.late is drop-unbiased, which needs to know how often a client is in time, but "
            "with radio.rates = whereabouts that depends on where it is: set latency.late to drop"
        )
    cell, nominal = _cell(section), priced.rates["client-server"]
    draws = rng(experiment.seed, "positions")
    first = scattered(len(net.samples), section.cell_metres, draws)
    _check_reach(found, cell, name)
    off = section.fading == "off"
    fading = None if off else _fading(section, first, first, experiment.seed)
    channel = Moving(found, first, cell, nominal, fading)
    rates, snr = replace(channel, fading=None).at(0, 0.0)
    return replace(priced, client_rates=rates, snr=snr, channel=channel)


def _check_reach(found: Whereabouts, cell: Cell, name: str) -> None:
    """Refuse places from which next to nothing arrives."""
    assert found.metres is not None
    assert found.lines is not None
    carried = efficiency(cell.snr(np.nan_to_num(found.metres, nan=NEAREST).clip(NEAREST)))
    lost = np.flatnonzero(carried < LEAST)
    if len(lost):
        n = int(lost[0])
        raise InputError(
            f"line {found.lines[n]} of {name} puts client {found.who[n]} "
            f"{found.metres[n] / 1000:.3g} km from its server, where its radio carries only "
            f"{carried[n] * cell.bandwidth_hz:.2g} bit/s: name a nearer server, or none, or raise "
            f"radio.power_dbm"
        )


def overheads(section: LatencySection, net: Network) -> Overheads:
    """What rounds cost in addition to computing and sending."""
    under_way: dict[Link, float] = {
        "client-server": section.client_server_ms / 1e3,
        "server-server": section.server_server_ms / 1e3,
        "server-cloud": section.server_cloud_ms / 1e3,
        "client-cloud": section.client_cloud_ms / 1e3,
    }
    return Overheads(
        delays={link: seconds for link, seconds in under_way.items() if seconds},
        message=section.message_ms / 1e3,
        round=section.round_ms / 1e3,
        connect=section.connect_ms / 1e3,
        header_bytes=section.header_bytes,
        cells=net.home,
        cell_rate=None if section.cell_mbps is None else section.cell_mbps * 1e6,
        common_rate=None if section.common_mbps is None else section.common_mbps * 1e6,
    )


def _own_channel(given: Any, radio: Floats, snr: Floats, seed: int) -> Channel:
    """A user's channel, or what a user's function makes of rates, noise and seed."""
    found = named.imported(given) if isinstance(given, str) else given
    if not hasattr(found, "at") or isinstance(found, type):
        with named.asked_for("radio.fading", "a channel"):
            found = found(radio, snr, seed)
    for method in ("at", "chance"):
        if not callable(getattr(found, method, None)):
            raise InputError(
                f"radio.fading gave a {type(found).__name__}, which lacks {method}: a channel has "
                f"at(round, seconds) and chance(needed)"
            )
    channel: Channel = found
    return channel


def build_case(experiment: Experiment, scheme: Scheme, net: Network) -> Case:
    """What decides which keys matter; the files that the experiment names are read for it."""
    section, network = experiment.radio, experiment.network
    tolerates, own, where = tolerance(scheme), scheme.adapt(net), network.whereabouts
    changes: tuple[Change, ...] = ()
    if network.changes is not None:
        changes = schedule(text_of(network.changes), network.changes)
        check(changes, net, network.changes)
    named = False, False
    if section.links is not None:
        table = links_table(text_of(section.links), section.links, net.links)
        named = _says(table.mbps, table.seconds), _says(table.cloud_mbps, table.cloud_seconds)
    used = frozenset(option for option in OPTIONS if tolerates.verdict(option) == YES)
    clients = None if where is None else build_whereabouts(network, where, net)
    rates, by_round = section.rates, clients is not None and clients.unit == "round"
    case = Case(
        experiment,
        scheme,
        tolerates,
        net,
        own,
        used,
        given_keys(experiment),
        changes,
        named,
        "equal" if rates == "equal" else _kind_of_rates(rates, len(net.samples)),
        clients=clients,
    )
    if rates == "whereabouts" and by_round and case.lanes:
        raise InputError(
            f"radio.rates is whereabouts, and {experiment.network.whereabouts} counts rounds, but "
            f"{experiment.scheme.label} has no common round: give the file's times in seconds"
        )
    return case


def _kind_of_rates(rates: str, clients: int) -> Rates:
    if rates in ("distance", "whereabouts"):
        return "distance" if rates == "distance" else "whereabouts"
    if not (Path(rates).suffix or Path(rates).is_file()):
        raise unknown("radio.rates", rates, ["equal", "distance", "whereabouts", "a file .csv"])
    return "metres" if clients_table(text_of(rates), rates, clients)[0] == "metres" else "mbps"


def build_changing(case: Case) -> tuple[Outages | None, tuple[str, ...]]:
    """How servers, links and the cloud come and go (None: they do not), as far as the scheme
    notices, and what the user should know about it."""
    section = case.experiment.network
    backhaul = case.experiment.compression.backhaul
    if case.net.peers is not None and backhaul != "none" and {"backhaul", "mixing"} <= case.used:
        raise InputError(
            f"compression.backhaul is {backhaul}, for which servers must hear every message of "
            f"their neighbours, but network.mixing is {case.net.peers.name}, in which they meet "
            f"few of them: set compression.backhaul to none"
        )
    if (section.server_up_seconds is None) != (section.server_down_seconds is None):
        raise InputError(
            "network.server_up_seconds and network.server_down_seconds go together: set both"
        )
    used = [kind in case.used for kind in ("absent_cloud", "changing_servers", "changing_links")]
    changes = tuple(change for change in case.schedule if used[len(change.who)])
    link_chance = section.link_chance if used[2] else 1.0
    up_seconds = section.server_up_seconds if used[1] else None
    clients = None if case.clients is None else used_whereabouts(case, case.clients)
    if not changes and link_chance == 1 and up_seconds is None and clients is None:
        return None, ()
    if case.net.peers is not None and "mixing" in case.used:
        raise InputError(
            f"network.mixing is {case.net.peers.name}, which plans its exchanges ahead, but "
            f"{_what_changes(section)} lets the server graph change: name a rule that fits any "
            f"graph ({', '.join(GOSSIP_RULES)})"
        )
    rule = callable(section.mixing) or named.spelled(section.mixing) in GOSSIP_RULES
    if not rule and "mixing" in case.used:
        raise InputError(
            f"network.mixing is the matrix in {named.spelled(section.mixing)}, but the server "
            f"graph changes: name a rule that fits any graph ({', '.join(GOSSIP_RULES)})"
        )
    outages = Outages(
        changes,
        link_chance,
        up_seconds,
        section.server_down_seconds or 1.0,
        case.experiment.seed,
        central=case.tolerates.central,
        clients=clients,
    )
    return outages, _warned(outages, case)


def _what_changes(section: NetworkSection) -> str:
    """The key by which links or servers come and go."""
    if section.changes is not None:
        return "network.changes"
    if section.whereabouts is not None:
        return "network.whereabouts"
    return "network.link_chance" if section.link_chance < 1 else "network.server_up_seconds"


def _warned(outages: Outages, case: Case) -> tuple[str, ...]:
    """A warning if the schedule leaves the network cut apart at its end."""
    name = case.experiment.network.changes
    if case.tolerates.central:
        lost = outages.schedule and not outages.schedule[-1].up
        return (f"at the end of {name} the cloud is away, so nobody will train any more",) * bool(
            lost
        )
    apart = outages.cut_off(case.net)
    if len(apart) < 2:
        return ()
    groups = " and ".join(str(part) for part in apart)
    return (
        f"at the end of {name}, servers {groups} are cut off from one another, so their "
        f"models will not agree",
    )


def _mean_snr(experiment: Experiment, clients: int) -> Floats:
    """(C,) by where clients are, or by measured rates."""
    section, cell = experiment.radio, _cell(experiment.radio)
    if section.rates == "distance":
        draws = rng(experiment.seed, "positions")
        return cell.snr(scattered(clients, section.cell_metres, draws))
    kind, values = clients_table(text_of(section.rates), section.rates, clients)
    if kind == "metres":
        return cell.snr(values)
    _check_band(values, section, section.rates)
    return snr_of(values * 1e6, section.bandwidth_mhz * 1e6)


def _cell(section: RadioSection) -> Cell:
    return Cell(
        section.bandwidth_mhz * 1e6,
        section.power_dbm,
        section.noise_dbm_per_hz,
        section.path_loss_db,
        section.path_loss_exponent,
    )


def _with_trace(priced: Cost, section: RadioSection, clients: int, nominal: float) -> Cost:
    if section.fading != "off" or section.rates != "equal":
        raise InputError(
            "radio.trace replaces all rates: remove it, or leave radio.rates and radio.fading at "
            "their defaults"
        )
    name, seconds = str(section.trace), None
    if Path(name).is_dir():  # of recordings in mahimahi's format
        files = sorted(path for path in Path(name).iterdir() if path.is_file())
        if not files:
            raise InputError(f"radio.trace is {name}, a folder without recordings")
        seconds, rates = mahimahi_table(files, clients)
    else:
        seconds, rates = trace_table(text_of(name), name, clients)
    _check_band(rates, section, name)
    trace = Trace(floats(rates * 1e6 / nominal), nominal, section.bandwidth_mhz * 1e6, seconds)
    return replace(priced, channel=trace)


def _with_links(priced: Cost, known: ServerGraph, net: Network) -> Cost:
    """Prices with what is known about links; the others keep what they have, or their kind's."""
    across, up, own = priced.server_rates, priced.cloud_rates, priced.overheads
    if _says(known.mbps, known.cloud_mbps):
        before = np.ones(net.links.shape) if across is None else across
        across = _known(known.mbps * 1e6 / priced.rates["server-server"], before) * net.links
        before = np.ones(len(net.linked)) if up is None else up
        up = _known(known.cloud_mbps * 1e6 / priced.rates["server-cloud"], before)
    if _says(known.seconds):
        usual = floats(np.full(net.links.shape, priced.delay("server-server")))
        usual = usual if own.server_delays is None else own.server_delays
        own = replace(own, server_delays=_known(known.seconds, usual) * net.links)
    if _says(known.cloud_seconds):
        usual = floats(np.full(len(net.linked), priced.delay("server-cloud")))
        usual = usual if own.cloud_delays is None else own.cloud_delays
        own = replace(own, cloud_delays=_known(known.cloud_seconds, usual))
    return replace(priced, server_rates=across, cloud_rates=up, overheads=own)


def _known(found: Floats, otherwise: Floats) -> Floats:
    return floats(np.where(np.isnan(found), otherwise, found))


def _says(*tables: Floats) -> bool:
    return any(bool((~np.isnan(each)).any()) for each in tables)


def _check_band(mbps: Floats, section: RadioSection, name: str) -> None:
    if mbps.max() > MOST * section.bandwidth_mhz:
        raise InputError(
            f"{name} has a rate of {mbps.max():g} Mbit/s, more than {section.bandwidth_mhz:g} MHz "
            f"can carry: raise radio.bandwidth_mhz"
        )


def build_late(experiment: Experiment) -> StragglerPolicy:
    """What is done about late clients."""
    section = experiment.latency
    if isinstance(section.late, str) and not named.is_path(section.late):
        return StragglerPolicy(cast(Policy, section.late), section.deadline_seconds)
    found = named.imported(section.late) if isinstance(section.late, str) else section.late
    if isinstance(found, type):
        with named.asked_for("latency.late", "a policy"):
            found = found(seconds=section.deadline_seconds)
    for part in ("settle", "check", "policy", "seconds"):
        if not hasattr(found, part):
            raise InputError(
                f"latency.late gave a {type(found).__name__}, which lacks {part}: a policy has "
                f"policy, seconds, settle(view, cost, work, mixed) and check(rounds, cost)"
            )
    policy: StragglerPolicy = found
    return policy
