"""What the page answers, and what it refuses."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sdfeel.core.events import Evaluated, Event, Warned
from sdfeel.core.run_files import EVENTS, EXPERIMENT
from tests.dashboard.conftest import Page
from tests.dashboard.logs import events, line, measured, played, started, write
from tests.dashboard.test_files import HOSTILE

LOOKING = ["run", "graph", "events", "experiment", "holdings", "forecast", "nodes", "timeline"]


def test_a_run_shows_figures_curves_phases_and_warnings(page: Page, tmp_path: Path) -> None:
    write(tmp_path / "race" / "one", events())
    shown = page().get("/api/run", params={"name": "race/one"}).json()
    assert shown["state"] == "finished"
    assert ["test accuracy", "80.0 %"] in shown["figures"]
    assert ["virtual time", "12.5 s"] in shown["figures"]
    assert ["why this engine", "it fits"] in shown["facts"]
    assert shown["warnings"] == ["the step size is large"]
    assert {p["name"]: round(p["share"], 3) for p in shown["phases"]} == {
        "compute": 0.4,
        "upload": 0.4,
        "mix": 0.2,
    }
    assert shown["own"] == []
    line_ = shown["charts"]["lines"][0]
    assert [c["name"] for c in shown["charts"]["costs"]] == [
        "virtual time",
        "local iterations",
        "rounds",
        "data moved",
        "modelled energy",
    ]
    assert line_["x"][0] == [1.25 * n for n in range(11)]
    assert line_["y"][0] == pytest.approx([4 * n / 50 for n in range(11)])


def test_each_clients_own_model_is_shown_the_worst_first(page: Page, tmp_path: Path) -> None:
    clients = started().clients
    own = replace(measured(1), personal=tuple(n / clients for n in reversed(range(clients))))
    write(tmp_path / "mine", [started(), own])
    shown = page().get("/api/run", params={"name": "mine"}).json()["own"]
    assert len(shown) == clients
    assert shown[0] == {"name": f"client {clients - 1}", "share": 0.0, "text": "0.0 %"}


def test_the_graph_shows_distances_traffic_and_staleness(page: Page, tmp_path: Path) -> None:
    # Two rounds, of servers 0 and 1, then a measurement 3 s later than the first of them.
    later = measured(4)
    assert isinstance(later, Evaluated)
    write(tmp_path / "one", [started(), measured(0), played(1), played(2), later])
    shown = page().get("/api/graph", params={"name": "one"}).json()
    assert shown["links"] == [[0, 1], [0, 3], [1, 2], [2, 3]]
    assert shown["clients"] == [2, 2, 2, 2]
    first, last = shown["frames"]
    assert first["age"] == [None] * 4
    assert last["distances"] == [0.1, 0.2, 0.3, 0.4]
    assert last["traffic"] == [2, 1, 1, 0]  # 0 met 1 and 3; 1 met 0 and 2
    assert last["age"] == [0.0, 0.0, 0.0, None]


def test_the_timeline_has_a_row_for_everybody(page: Page, tmp_path: Path) -> None:
    write(tmp_path / "one", events())
    query = {"name": "one", "begin": "0", "end": "2.5"}
    shown = page().get("/api/timeline", params=query).json()
    assert [row["who"] for row in shown["rows"]][:4] == [
        "server 0",
        "client 0",
        "client 1",
        "server 1",
    ]
    assert len(shown["rows"]) == 12
    client = next(row for row in shown["rows"] if row["who"] == "client 0")
    assert client["spans"][0][:3] == ["compute", 0.0, 0.25]
    one = page().get("/api/timeline", params={**query, "server": "2"}).json()
    assert [row["who"] for row in one["rows"]] == ["server 2", "client 4", "client 5"]


def test_absences_are_bands_in_the_timeline(page: Page, tmp_path: Path) -> None:
    """Whoever says it: a simulated run, or nodes that miss one another until the last is back."""

    def told(after: int, text: str) -> list[Event]:
        return [played(after), Warned(text)]

    log: list[Event] = [started(), played(1)]
    log += told(5, "server 1 went down after round 5")  # 2.5 s
    log += told(9, "server 1 is back with the model it had after round 9")  # 3.75 s
    log += [Warned("round 9: edge-0 goes on without edge-2"), Warned("the cloud went down")]
    log += told(13, "round 13: edge-3 goes on without edge-2")
    log += told(17, "round 17: edge-2 is back at edge-0")  # 6.25 s: still missed by server 3
    log += told(21, "round 21: edge-2 is back at edge-3")  # 7.5 s
    log += [Warned("round 21: edge-1 goes on without client-3")]
    log += told(25, "the cloud went down after round 25")  # 8.75 s
    write(tmp_path / "one", [*log, played(29)])
    query = {"name": "one", "begin": "3", "end": "9"}
    shown = page().get("/api/timeline", params=query).json()
    assert shown["away"] == {
        "server 1": [[3.0, 3.75]],
        "server 2": [[3.75, 7.5]],
        "client 3": [[7.5, 9.0]],
        "cloud": [[8.75, 9.0]],
    }
    assert "server 2" in [row["who"] for row in shown["rows"]]
    early = page().get("/api/timeline", params={**query, "begin": "0", "end": "2"}).json()
    assert early["away"] == {}


def test_events_come_page_by_page(page: Page, tmp_path: Path) -> None:
    write(tmp_path / "one", events(200))
    client = page()
    first = client.get("/api/events", params={"name": "one"}).json()
    assert first["rows"][0]["kind"] == "finished"
    assert len(first["rows"]) == 100
    older = client.get("/api/events", params={"name": "one", "before": first["before"]}).json()
    assert older["rows"][0]["offset"] < first["rows"][-1]["offset"]
    warned = client.get("/api/events", params={"name": "one", "kind": "warned"}).json()
    assert [row["fields"] for row in warned["rows"]] == [{"message": "the step size is large"}]


def test_an_old_log_is_shown_as_far_as_it_goes(page: Page, tmp_path: Path) -> None:
    old = (
        b'{"event": "started", "scheme": "feel", "clients": 5, "servers": 2, "parameters": 9, '
        b'"engine": "loop", "seed": 1, "zeta": 0.5}\n'
        b'{"event": "evaluated", "number": 0, "iterations": 0, "seconds": 0.0, "bytes": 0, '
        b'"joules": 0.0, "loss": 2.3, "test_loss": NaN, "accuracy": 0.1, "spread": 0.0}\n'
    )
    write(tmp_path / "old", [], old)
    client = page()
    assert ["test loss", "not a number"] in client.get("/api/run", params={"name": "old"}).json()[
        "figures"
    ]
    assert "did not record" in client.get("/api/graph", params={"name": "old"}).json()["why"]
    asked = client.get("/api/timeline", params={"name": "old", "begin": "0", "end": "1"})
    assert asked.json() == {"why": "No round is finished yet."}


def test_a_damaged_log_is_shown_as_damaged(page: Page, tmp_path: Path) -> None:
    write(tmp_path / "bad", [started(), measured(0)], b"<b>junk</b>\n" + line(measured(4)))
    shown = page().get("/api/run", params={"name": "bad"}).json()
    assert shown["state"] == "damaged"
    assert shown["warnings"] == [
        "The log is damaged: 1 line that is not an event (line 3), left out here."
    ]
    assert shown["accuracy"] == 0.08


def test_numbers_beyond_all_bounds_do_not_break_the_page(page: Page, tmp_path: Path) -> None:
    wild = line(played(1)).replace(b'"compute": 0.5', b'"compute": 1e308')
    wild += line(measured(4)).replace(b'"bytes": 4000', b'"bytes": ' + b"9" * 400)
    wild += line(started()).replace(b'"servers": 4', b'"servers": 999999999999')
    write(tmp_path / "wild", [started(), measured(0)], wild)
    client = page()
    for path in LOOKING:
        answer = client.get(f"/api/{path}", params={"name": "wild", "begin": "0", "end": "9"})
        assert answer.json() is not None
        assert answer.status_code in (200, 400, 404, 500)
    assert client.get("/api/about").status_code == 200


@pytest.mark.parametrize("name", [*HOSTILE, "", "nothing-there"])
def test_no_hostile_name_is_answered(page: Page, tmp_path: Path, name: str) -> None:
    write(tmp_path / "outside", events())
    served = tmp_path / "served"
    served.mkdir()
    client = page(directory=served)
    for path in LOOKING:
        query = {"name": name, "begin": "0", "end": "1"}
        assert client.get(f"/api/{path}", params=query).status_code in (400, 404)
    assert client.get("/file", params={"name": name, "file": EVENTS}).status_code == 404
    assert client.get("/picture", params={"run": name}).status_code == 404
    assert client.get("/api/compare", params={"run": name}).status_code == 404


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2f..%2fapp.py", "/../etc/passwd"],
)
def test_only_the_pages_own_files_are_assets(page: Page, path: str) -> None:
    assert page().get(path).status_code == 404


@pytest.mark.parametrize("file", ["checkpoint.safetensors", "../one/events.jsonl", "", ".lock"])
def test_only_known_files_can_be_saved(page: Page, tmp_path: Path, file: str) -> None:
    write(tmp_path / "one", events())
    assert page().get("/file", params={"name": "one", "file": file}).status_code == 404


def test_files_are_saved_as_they_are(page: Page, tmp_path: Path) -> None:
    run = write(tmp_path / "race" / 'o;n"e', events())
    (run / EXPERIMENT).write_text("seed = 4\n")
    client = page()
    for file in (EVENTS, EXPERIMENT):
        answer = client.get("/file", params={"name": 'race/o;n"e', "file": file})
        assert answer.content == (run / file).read_bytes()
        assert answer.headers["content-disposition"].count('"') == 2
    for options, begin in (
        ({}, b"\x89PNG"),
        ({"as": "svg"}, b"<?xml"),
        ({"as": "pdf", "width": "page"}, b"%PDF"),
    ):
        picture = client.get("/picture", params={"run": 'race/o;n"e', **options})
        assert picture.content.startswith(begin)
    for options, wrong in (({"as": "exe"}, "exe"), ({"width": "wall"}, "wall")):
        refused = client.get("/picture", params={"run": 'race/o;n"e', **options})
        assert refused.status_code == 400
        assert wrong in refused.json()["error"]


def test_the_experiment_has_help_texts_and_marks_what_is_not_the_default(
    page: Page, tmp_path: Path
) -> None:
    run = write(tmp_path / "one", events())
    (run / EXPERIMENT).write_text("seed = 4\n[network]\nclients = 50\nservers = 3\n")
    sections = page().get("/api/experiment", params={"name": "one"}).json()["sections"]
    network = next(s for s in sections if s["name"] == "network")["keys"]
    assert network == [
        {"key": "clients", "value": 50, "help": "number of clients", "changed": False},
        {"key": "servers", "value": 3, "help": "number of edge servers", "changed": True},
    ]


def test_who_holds_what_is_the_runs_own_split(page: Page, tmp_path: Path) -> None:
    run = write(tmp_path / "one", events())
    (run / EXPERIMENT).write_text("seed = 4\n[network]\nclients = 8\nservers = 4\n")
    shown = page().get("/api/holdings", params={"name": "one"}).json()
    assert len(shown["servers"]) == 4
    assert sorted(each["client"] for each in shown["clients"]) == list(range(8))
    assert all(sum(c > 0 for c in each["counts"]) == 2 for each in shown["clients"])
    by_hand = [sum(column) for column in zip(*(c["counts"] for c in shown["clients"]), strict=True)]
    assert by_hand == [sum(column) for column in zip(*shown["servers"], strict=True)]


class Opened:
    """Which files of a directory this process opens in the meantime, by Python's audit events."""

    def __init__(self, directory: Path) -> None:
        self.paths: list[str] = []
        self._within, self._watching = str(directory.resolve()), False
        sys.addaudithook(self._hear)  # there is no way to take one back

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._watching and event == "open" and isinstance(arguments[0], str | bytes):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if path.startswith(self._within):
                self.paths.append(path)

    def __enter__(self) -> "Opened":
        self._watching = True
        return self

    def __exit__(self, *_: object) -> None:
        self._watching = False


@pytest.mark.parametrize(
    "keys",
    [
        "[network]\ngraph = '{}'",
        "[network]\nmixing = '{}'",
        "[network]\nassignment = '{}'",
        "[data]\npartition = '{}'",
        "[data]\nname = '{}'",
        "[data]\ndirectory = '{}'",
        "[network]\nchanges = '{}'",
        "[network]\nplaces = '{}'",
        "[network]\nwhereabouts = '{}'",
        "[devices]\nfile = '{}'",
        "[radio]\nrates = '{}'",
        "[radio]\ntrace = '{}'",
        "[radio]\nlinks = '{}'",
    ],
)
def test_nothing_outside_is_opened_whatever_an_experiment_says(
    page: Page, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, keys: str
) -> None:
    """A run may come from anywhere, and its file may name this machine's secrets."""
    outside = tmp_path_factory.mktemp("outside")
    secret = outside / ("key.npz" if "name" in keys else "key.csv")
    secret.write_text("TOP SECRET\n")
    link = tmp_path / f"innocent{secret.suffix}"
    link.symlink_to(secret)
    for file in (secret, link, outside if "directory" in keys else link):
        write(tmp_path / "one", events())
        (tmp_path / "one" / EXPERIMENT).write_text(keys.format(file))
        with Opened(outside) as opened:
            client = page()
            text = client.get("/api/holdings", params={"name": "one"}).text
            answer = client.get("/api/forecast", params={"name": "one"})
        assert "SECRET" not in text + answer.text
        assert answer.status_code == 400
        assert "outside the directory" in answer.json()["error"]
        assert not opened.paths


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ("[model]\nname = 'antigravity:fly'", "never runs other people's code"),
        ("[scheme]\nname = 'antigravity:fly'", "never runs other people's code"),
        ("[latency]\nlate = 'antigravity:fly'", "never runs other people's code"),
        ("[evaluation]\nmetrics = ['antigravity:fly']", "never runs other people's code"),
        ("[radio]\ntrace = '{}/*'", "opens nothing outside"),
        ("[network]\nclients = 1000000000", "works with at most 20,000"),
        ("[model]\nname = 'mlp'\noptions = {{ hidden = 10000000 }}", "at most 100,000"),
        ("[scheme]\ntau2 = 1000000000", "up to 50"),
        ("[scheme]\nname = 'safa'", "but not safa"),
    ],
)
def test_no_prediction_runs_code_or_builds_what_is_huge(
    page: Page, tmp_path: Path, keys: str, sentence: str
) -> None:
    write(tmp_path / "one", events())
    (tmp_path / "one" / EXPERIMENT).write_text(keys.format(tmp_path))
    answer = page().get("/api/forecast", params={"name": "one"})
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]
    assert "antigravity" not in sys.modules


def test_a_run_is_shown_beside_what_the_planner_predicts(page: Page, tmp_path: Path) -> None:
    """Runs that differ only in knobs count together, others do not."""
    for name, more in {
        "one": "",
        "two": "[scheme]\ntau1 = 10",
        "else": "[training]\nlearning_rate = 0.5",
    }.items():
        write(tmp_path / name, events())
        text = f"seed = 3\n[network]\nclients = 6\nservers = 3\n{more}\n"
        (tmp_path / name / EXPERIMENT).write_text(text)
    client = page()

    def told(**changes: float) -> Any:
        query = {key.replace("__", "."): str(value) for key, value in changes.items()}
        return client.get("/api/forecast", params={"name": "one", **query}).json()

    plain = told()
    assert [row["name"] for row in plain["rows"]][:2] == ["time per round", "time to 70 %"]
    assert plain["rows"][0]["cells"][0] == "1.25 s"
    assert all(row["cells"][1] == row["cells"][2] for row in plain["rows"])
    assert "from 2 runs" in plain["notes"][-1]
    assert {knob["key"]: knob["value"] for knob in plain["knobs"]}["scheme.tau1"] == 5
    halved = {row["name"]: row["ratio"] for row in told(scheme__tau1=10)["rows"]}
    assert halved["data moved"] == pytest.approx(0.5)
    assert "cannot be asked about" in told(network__clients=7)["error"]
    assert "must be a number" in client.get("/api/forecast?name=one&scheme.tau1=x").json()["error"]
