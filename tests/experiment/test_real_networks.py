"""Networks that exist: their links, lengths and places, from topohub and from files."""

from pathlib import Path

import numpy as np
import pytest

from sdfeel.core.errors import InputError, SdfeelError
from sdfeel.experiment.build import prepare
from sdfeel.experiment.build_network import build_places, server_graph, with_servers
from sdfeel.experiment.loading import load
from sdfeel.experiment.real_networks import (
    great_circle,
    read_places,
    read_server_graph,
    topohub,
)
from sdfeel.experiment.user_files import read_speeds
from sdfeel.report.topology import on_map

SMALL = ("network.clients=22", "training.iterations=5", "model.name=logistic", "data.partition=iid")
ABILENE = "network.graph=topohub:topozoo/Abilene"


def test_a_real_network_has_its_links_lengths_and_places() -> None:
    found = topohub("topohub:TopoZoo/abilene")
    assert found.servers == 11
    assert found.links.sum() == 2 * 14
    assert found.names[:2] == ("New York", "Chicago")
    assert found.places is not None
    joined = np.argwhere(np.triu(found.links))
    for a, b in joined.tolist():
        km = found.seconds[a, b] * 2e5
        assert km == pytest.approx(great_circle(found.places[a], found.places[b]), rel=0.02)
    assert np.isnan(found.seconds[found.links == 0]).all()


def test_a_run_on_a_real_network_takes_its_servers_and_its_delays() -> None:
    ready = prepare(load(None, [*SMALL, ABILENE]))
    assert ready.experiment.network.servers == 11
    assert ready.net.places is not None
    delays = ready.cost.overheads.server_delays
    assert delays is not None
    assert delays.max() == pytest.approx(2207.38 / 2e5)  # the longest link, by topohub's own words
    simulation = ready.simulation()
    plain = prepare(load(None, [*SMALL, "network.servers=11"])).simulation()
    longer = next(simulation).phases["mix"] - next(plain).phases["mix"]
    assert longer == pytest.approx(delays.max(), rel=1e-6)


def test_lengths_and_rates_of_a_table_are_prices_and_a_second_table_wins(tmp_path: Path) -> None:
    graph, more = tmp_path / "net.csv", tmp_path / "more.csv"
    graph.write_text("from,to,mbps,ms,km\n0,1,10,3,-\n1,2,-,-,400\n2,0\n")
    more.write_text("from,to,ms,mbps\n2,1,7,\n0,cloud,20,4\n")
    base = [*SMALL, f"network.graph={graph}", "network.servers=3", "latency.server_server_ms=1"]
    ready = prepare(load(None, base))
    assert ready.cost.overheads.server_delays is not None
    found = ready.cost.overheads.server_delays
    assert found[0, 1] == found[1, 0] == 0.003
    assert found[1, 2] == pytest.approx(0.002)  # 400 km of fibre
    assert found[0, 2] == 0.001  # its kind's
    assert ready.cost.server_rates is not None
    assert ready.cost.server_rates[0, 1] == pytest.approx(10 / 50)
    again = prepare(load(None, [*base, f"radio.links={more}"])).cost
    assert again.overheads.server_delays is not None
    assert again.overheads.server_delays[1, 2] == 0.007
    assert again.overheads.server_delays[0, 1] == 0.003
    assert again.overheads.cloud_delays is not None
    assert again.overheads.cloud_delays.tolist() == [0.02, 0, 0]
    assert again.cloud_rates is not None
    assert again.cloud_rates.tolist() == [4 / 5, 1, 1]


def test_graphml_of_the_topology_zoo_has_places_and_speeds(tmp_path: Path) -> None:
    file = tmp_path / "zoo.graphml"
    file.write_text(
        """<?xml version="1.0"?><graphml xmlns="http://graphml.graphdrawing.org/xmlns">
        <key attr.name="Longitude" attr.type="double" for="node" id="x"/>
        <key attr.name="Latitude" attr.type="double" for="node" id="y"/>
        <key attr.name="label" attr.type="string" for="node" id="l"/>
        <key attr.name="LinkSpeedRaw" attr.type="double" for="edge" id="s"/>
        <graph edgedefault="undirected">
        <node id="0"><data key="x">-74.01</data><data key="y">40.71</data>
        <data key="l">New York</data></node>
        <node id="1"><data key="x">-87.65</data><data key="y">41.85</data>
        <data key="l">Chicago</data></node>
        <edge source="0" target="1"><data key="s">155000000</data></edge></graph></graphml>"""
    )
    found = read_server_graph(file)
    assert found.names == ("New York", "Chicago")
    assert found.mbps[0, 1] == 155
    assert found.seconds[0, 1] == pytest.approx(1146 / 2e5, rel=1e-3)
    asked = load(None, [f"network.graph={file}", "network.servers=2"])
    assert build_places(asked, server_graph(asked)) == ((-74.01, 40.71), (-87.65, 41.85))


def test_a_map_keeps_directions_and_fills_the_picture() -> None:
    found = on_map([(0.0, 60.0), (10.0, 60.0), (0.0, 65.0)])
    assert np.allclose(found[1][1], found[0][1])
    assert found[2][1] > found[0][1]
    east, north = found[1][0] - found[0][0], found[2][1] - found[0][1]
    assert east / north == pytest.approx(10 * np.cos(np.radians(61.667)) / 5, rel=1e-3)
    assert max(np.abs(point).max() for point in found.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0 1\n1\n", "line 2 of {file} is '1', not a link between two servers"),
        (
            "a,b,mbps\n0,1,fast\n",
            "line 2 of {file} gives 'fast' as mbps: it must be a number above",
        ),
        ("a,b,mbps\n0,1,-4\n", "line 2 of {file} gives '-4' as mbps"),
        ("a,b,km\n0,1,4,5\n", "line 2 of {file} has 2 values for 1 columns (km)"),
        ("a,b,mbps,colour\n0,1,4,red\n", "line 1 of {file} names a column 'colour'"),
        ("from,to,kmh\n0,1,4\n", "line 1 of {file} names a column 'kmh'"),
        ("a,b,km\n0,1,4\n1,0,5\n", "line 3 of {file} contradicts an earlier line"),
        ("0 1\n1 2\n", "the graph in {file} joins 3 servers, but network.servers is 2"),
    ],
)
def test_a_bad_list_of_links_is_one_sentence_with_the_line(
    text: str, sentence: str, tmp_path: Path
) -> None:
    file = tmp_path / "net.csv"
    file.write_text(text)
    with pytest.raises(SdfeelError) as raised:
        server_graph(load(None, [f"network.graph={file}", "network.servers=2"]))
    assert sentence.format(file=file) in str(raised.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("longitude,latitude\n1,2\n200,0\n", "line 3 of p.csv is '200,0', not a longitude"),
        ("1,north\n1,2\n", "line 1 of p.csv is '1,north', not a longitude"),
        ("1,2\n", "p.csv has 1 places, but there are 2 servers: give one each"),
    ],
)
def test_a_bad_list_of_places_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read_places(text, "p.csv", 2)


def test_names_that_topohub_lacks_and_numbers_that_differ_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'topohub:topozoo/Abilene'"):
        topohub("topohub:topozoo/Abilen")
    wrong = load(None, [ABILENE, "network.servers=4"])
    assert with_servers(wrong) is wrong
    with pytest.raises(InputError, match=r"joins 11 servers, but network.servers is 4"):
        server_graph(wrong)


def test_devices_are_known_by_name_and_others_are_refused_by_line(tmp_path: Path) -> None:
    file = tmp_path / "devices.csv"
    file.write_text("client,device\n0,raspberry-pi-4\n1,jetson-nano\n")
    assert read_speeds(file, 2).tolist() == [8e9, 235.8e9]
    file.write_text("client,device\n0,raspberry-pi-4\n1,toaster\n")
    with pytest.raises(
        InputError, match=r"line 3 of .* names a device 'toaster', but the known ones are rasp"
    ):
        read_speeds(file, 2)
