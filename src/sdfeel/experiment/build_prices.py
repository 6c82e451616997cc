"""From an experiment to its prices: speeds, links, overheads and radio channels."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from sdfeel.core import named
from sdfeel.core.arrays import Floats, floats
from sdfeel.core.cost import Channel, Cost, Overheads, Power
from sdfeel.core.errors import InputError, unknown
from sdfeel.core.link_times import SNR, Link
from sdfeel.core.network import Network
from sdfeel.core.seeds import rng
from sdfeel.core.whereabouts import Whereabouts
from sdfeel.data.federated import Federated
from sdfeel.engine.messages import FLOAT, Packing
from sdfeel.engine.parts import GRADIENTS
from sdfeel.experiment.build_network import server_graph
from sdfeel.experiment.build_training import preset_of
from sdfeel.experiment.cost_sections import LatencySection, RadioSection
from sdfeel.experiment.key_rules import Rates
from sdfeel.experiment.read_whereabouts import build_whereabouts
from sdfeel.experiment.real_networks import ServerGraph, links_table
from sdfeel.experiment.schema import Experiment
from sdfeel.experiment.user_files import (
    clients_table,
    mahimahi_table,
    read_speeds,
    text_of,
    trace_table,
)
from sdfeel.models import zoo
from sdfeel.models.flat import Layout
from sdfeel.radio import latency
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

MOST_PER_HERTZ = 40.0  # bits per second: no radio sends more
LEAST_PER_HERTZ = 1e-3  # with less than this, nobody would send a model


def build_cost(
    experiment: Experiment,
    data: Federated,
    net: Network,
    module: nn.Module,
    layout: Layout,
    packing: Packing | None = None,
) -> Cost:
    """Each client's speed and each link's rate, which give the price of a round."""
    section, devices = experiment.latency, experiment.devices
    clients = len(data.parts)
    speeds = floats(np.full(clients, devices.gflops * 1e9))
    if devices.file is not None:
        speeds = read_speeds(Path(devices.file), clients)
    elif devices.spread > 1:
        draws = rng(experiment.seed, "devices")
        speeds = latency.speeds(clients, devices.gflops * 1e9, devices.spread)
        speeds = latency.assigned(speeds, devices.placement, net.home, draws)
    card = zoo.MODELS.get(named.recorded_name(experiment.model.name))
    printed = None if card is None else card.operations
    packed: dict[Link, int] = {}  # bits of a compressed model, where one travels
    if packing is not None and packing.up:
        packed["client-server"] = packed["client-cloud"] = packing.bits(layout.priced)
    if packing is not None and packing.across is not None:
        packed["server-server"] = packing.across.bits(layout.priced)
    gradients = GRADIENTS.get(experiment.personal.method, 1)
    busy = 1.0 if section.cores is None else max(clients / section.cores, 1.0)
    preset = preset_of(experiment)
    steps = latency.step_seconds(
        speeds,
        data.samples,
        section.operations or printed or zoo.operations(module, data.train.first),
        experiment.training.batch_size,
        preset,
    )
    priced = Cost(
        step_seconds=floats(busy * gradients * steps),
        model_bits=section.model_bits or float(FLOAT * sum(layout.priced)),
        rates=section.rates,
        downlink=section.downlink or preset.downlink,
        calls=section.calls or preset.calls,
        holds=section.holds or preset.holds,
        cell_edge_rate=section.cell_edge_mbps * 1e6,
        power=Power(devices.computing_watts, devices.sending_watts, devices.backhaul_watts),
        packed=packed,
        overheads=overheads(section, net),
    )
    return with_radio(priced, experiment, net)


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
            "radio.rates is whereabouts, but no file says where clients are: give "
            "network.whereabouts a file with longitude and latitude"
        )
    if not isinstance(section.fading, str) or named.is_path(section.fading):
        raise InputError(
            "radio.fading is a channel of your own, which is given the clients' mean rates once, "
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
    lost = np.flatnonzero(carried < LEAST_PER_HERTZ)
    if len(lost):
        n = int(lost[0])
        raise InputError(
            f"line {found.lines[n]} of {name} puts client {found.who[n]} "
            f"{found.metres[n] / 1000:.3g} km from its server, where its radio carries only "
            f"{carried[n] * cell.bandwidth_hz:.2g} bit/s: name a nearer server, or none, or raise "
            f"radio.power_dbm"
        )


def _own_channel(given: Any, radio: Floats, snr: Floats, seed: int) -> Channel:
    """A user's channel, or the channel that a user's function returns."""
    found = named.imported(given) if isinstance(given, str) else given
    if not hasattr(found, "at") or isinstance(found, type):
        with named.errors_naming("radio.fading", "a channel"):
            found = found(radio, snr, seed)
    for method in ("at", "chance"):
        if not callable(getattr(found, method, None)):
            raise InputError(
                f"radio.fading gave a {type(found).__name__}, which lacks {method}: a channel has "
                f"at(round, seconds) and chance(needed)"
            )
    channel: Channel = found
    return channel


def kind_of_rates(rates: str, clients: int) -> Rates:
    if rates in ("distance", "whereabouts"):
        return "distance" if rates == "distance" else "whereabouts"
    if not (Path(rates).suffix or Path(rates).is_file()):
        raise unknown("radio.rates", rates, ["equal", "distance", "whereabouts", "a file .csv"])
    return "metres" if clients_table(text_of(rates), rates, clients)[0] == "metres" else "mbps"


def _mean_snr(experiment: Experiment, clients: int) -> Floats:
    """(C,) mean signal-to-noise ratios, from where clients are or from measured rates."""
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
    """Prices with the rates and delays that `known` has; other links keep what they had."""
    across, up, own = priced.server_rates, priced.cloud_rates, priced.overheads
    if any_known(known.mbps, known.cloud_mbps):
        before = np.ones(net.links.shape) if across is None else across
        across = _known(known.mbps * 1e6 / priced.rates["server-server"], before) * net.links
        before = np.ones(len(net.linked)) if up is None else up
        up = _known(known.cloud_mbps * 1e6 / priced.rates["server-cloud"], before)
    if any_known(known.seconds):
        usual = floats(np.full(net.links.shape, priced.delay("server-server")))
        usual = usual if own.server_delays is None else own.server_delays
        own = replace(own, server_delays=_known(known.seconds, usual) * net.links)
    if any_known(known.cloud_seconds):
        usual = floats(np.full(len(net.linked), priced.delay("server-cloud")))
        usual = usual if own.cloud_delays is None else own.cloud_delays
        own = replace(own, cloud_delays=_known(known.cloud_seconds, usual))
    return replace(priced, server_rates=across, cloud_rates=up, overheads=own)


def _known(found: Floats, otherwise: Floats) -> Floats:
    return floats(np.where(np.isnan(found), otherwise, found))


def any_known(*tables: Floats) -> bool:
    """Does one of these tables have a value that is not NaN?"""
    return any(bool((~np.isnan(each)).any()) for each in tables)


def _check_band(mbps: Floats, section: RadioSection, name: str) -> None:
    if mbps.max() > MOST_PER_HERTZ * section.bandwidth_mhz:
        raise InputError(
            f"{name} has a rate of {mbps.max():g} Mbit/s, more than {section.bandwidth_mhz:g} MHz "
            f"can carry: raise radio.bandwidth_mhz"
        )
