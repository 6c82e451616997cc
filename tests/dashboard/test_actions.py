"""Real runs are started, stopped and resumed from the page."""

from pathlib import Path
from typing import Any

import pytest

from sdfeel.core import run_files
from sdfeel.experiment.loading import load
from sdfeel.run import session, store
from sdfeel.run.checkpoint import load_checkpoint
from tests.dashboard.conftest import ORIGIN, Page
from tests.dashboard.logs import events, write
from tests.waiting import until

LONG = [
    "network.clients=6",
    "network.servers=3",
    "training.iterations=200000",
    "training.engine=loop",
    "checkpoint.every_seconds=0",
]


class Desk:
    """The page, as its own script uses it."""

    def __init__(self, page: Page) -> None:
        self.client = page(allow_start=True)
        secret = self.client.get("/api/about").json()["secret"]
        self.headers = {"origin": ORIGIN, "x-sdfeel-secret": secret}

    def tell(self, path: str, **content: Any) -> Any:
        return self.client.post(f"/api/{path}", json=content, headers=self.headers)

    def state(self, name: str) -> str:
        answer = self.client.get("/api/run", params={"name": name})
        return str(answer.json().get("state"))


@pytest.mark.slow
def test_a_run_is_started_stopped_and_resumed(page: Page, tmp_path: Path) -> None:
    desk = Desk(page)
    assert desk.tell("start", name="long", settings=LONG).status_code == 200
    until(lambda: desk.state("long") == "running")
    until(lambda: (tmp_path / "long" / run_files.CHECKPOINT).exists())
    assert desk.tell("resume", name="long").status_code == 400  # it is running
    assert desk.tell("stop", name="long").json()["state"] == "stopping"
    until(lambda: desk.state("long") == "stopped")
    before = len(list(store.read_events(tmp_path / "long")))
    assert session.finished(tmp_path / "long") is None
    until(lambda: desk.tell("resume", name="long").status_code == 200)
    until(lambda: len(list(store.read_events(tmp_path / "long"))) > before)
    assert desk.tell("stop", name="long").status_code == 200


@pytest.mark.slow
def test_closing_the_page_stops_what_it_started(page: Page, tmp_path: Path) -> None:
    from starlette.testclient import TestClient

    from sdfeel.dashboard.app import build

    with TestClient(build(tmp_path, allow_start=True), base_url=ORIGIN) as client:
        headers = {
            "origin": ORIGIN,
            "x-sdfeel-secret": client.get("/api/about").json()["secret"],
        }
        client.post("/api/start", json={"name": "long", "settings": LONG}, headers=headers)
        until(lambda: (tmp_path / "long" / run_files.CHECKPOINT).exists())
    with store.locked(tmp_path / "long"):  # nobody holds it any more
        assert load_checkpoint(tmp_path / "long") is not None


@pytest.mark.slow
def test_what_goes_wrong_after_the_start_is_reported(page: Page, tmp_path: Path) -> None:
    desk = Desk(page)
    bad = ["data.name=mnist", f"data.directory={tmp_path}"]
    assert desk.tell("start", name="bad", settings=bad).status_code == 200
    app: Any = desk.client.app
    jobs = app.app.state.dashboard.jobs
    until(lambda: jobs.records()[0]["state"] == "failed")
    assert "mnist" in jobs.records()[0]["message"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["training.iterations=0"], "training.iterations must be at least 1, got 0"),
        (["network.cleints=3"], "did you mean"),
        (["--out=elsewhere"], "key"),
        ("seed=1", "settings cannot be used"),
    ],
)
def test_a_bad_setting_is_refused_in_one_sentence(page: Page, settings: Any, sentence: str) -> None:
    answer = Desk(page).tell("start", name="new", settings=settings)
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "-o", "a b", "x" * 101, "taken"])
def test_a_bad_name_is_refused(page: Page, tmp_path: Path, name: str) -> None:
    write(tmp_path / "taken", events())
    assert Desk(page).tell("start", name=name, settings=[]).status_code == 400


@pytest.mark.slow
def test_a_plan_is_started_and_its_best_can_be_downloaded(page: Page, tmp_path: Path) -> None:
    desk = Desk(page)
    small = ["network.clients=6", "network.servers=2", "training.iterations=10"]
    goal = {"effort": "0", "schemes": "sd-feel,fedavg"}
    answer = desk.tell("start", what="plan", name="best", settings=small, goal=goal)
    assert answer.json()["what"] == "plan"
    app: Any = desk.client.app
    jobs = app.app.state.dashboard.jobs
    until(lambda: jobs.records()[0]["state"] in ("finished", "failed"))
    assert jobs.records()[0]["message"] == ""
    saved = desk.client.get("/file", params={"name": "best", "file": "plan.json"})
    assert saved.content == (tmp_path / "best" / "plan.json").read_bytes()
    if (tmp_path / "best" / "best.toml").exists():
        query = {"name": "best", "planned": "yes"}
        sections = desk.client.get("/api/experiment", params=query).json()["sections"]
        network = next(s["keys"] for s in sections if s["name"] == "network")
        assert {key["key"]: key["value"] for key in network}["clients"] == 6


@pytest.mark.parametrize("goal", [{"out": "/elsewhere"}, {"budget": "--out=/elsewhere"}])
def test_a_goal_cannot_smuggle_other_options(page: Page, goal: dict[str, str]) -> None:
    answer = Desk(page).tell("start", what="plan", name="new", settings=[], goal=goal)
    assert "is not an option of a plan" in answer.json()["error"]


def test_a_finished_run_cannot_be_resumed(page: Page, tmp_path: Path) -> None:
    write(tmp_path / "done", events())
    answer = Desk(page).tell("resume", name="done")
    assert answer.json() == {"error": "done is finished: there is nothing to resume"}


@pytest.mark.parametrize("name", ["..", "/", "nothing"])
def test_nothing_outside_is_resumed(page: Page, name: str) -> None:
    assert Desk(page).tell("resume", name=name).status_code == 404


def test_the_form_knows_every_key_and_gives_the_defaults(page: Page) -> None:
    form = Desk(page).client.get("/api/form").json()
    fields = {f["path"]: f for section in form["sections"] for f in section["fields"]}
    default = load().model_dump()
    for path, field in fields.items():
        section, _, key = path.rpartition(".")
        assert field["default"] == (default[section] if section else default)[key]
        assert field["help"]
    keys = {f"{s}.{k}" for s, part in default.items() if isinstance(part, dict) for k in part}
    assert {*fields} == {"seed", *keys}
    assert fields["training.engine"]["choices"][:2] == ["auto", "loop"]
    assert fields["network.radius"]["above"] == 0
    assert form["schemes"]["sd-feel"]["fields"][0]["help"].startswith("local iterations")


def test_notes_are_checked_and_written_into_the_run_alone(page: Page, tmp_path: Path) -> None:
    desk = Desk(page)
    run = write(tmp_path / "served" / "one", events())
    desk.client.close()
    desk.client = page(allow_start=True, directory=tmp_path / "served")
    desk.headers["x-sdfeel-secret"] = desk.client.get("/api/about").json()["secret"]
    told = desk.tell("notes", name="one", tags=["paper", " paper", ""], note=" good ").json()
    assert (told["tags"], told["note"]) == (["paper"], "good")
    wrong: list[dict[str, Any]] = [{"tags": "x"}, {"tags": ["x"] * 3 + ["y" * 99]}, {"note": 7}]
    wrong += [{"note": "x" * 5000}, {"tags": ["a,b"]}, {"tags": [f"{n}" for n in range(21)]}]
    assert [desk.tell("notes", name="one", **each).status_code for each in wrong] == [400] * 6
    (tmp_path / "outside").write_text("mine")
    (run / run_files.NOTES).unlink()
    (run / run_files.NOTES).symlink_to(tmp_path / "outside")
    (tmp_path / "served" / "way").symlink_to(tmp_path)
    assert desk.tell("notes", name="one", note="new").status_code == 200
    assert (tmp_path / "outside").read_text() == "mine"  # a link is replaced, not followed
    for name in ("../outside", "way", ".", "none"):
        assert desk.tell("notes", name=name, note="new").status_code == 404
    assert page().post("/api/notes", json={"name": "one"}, headers=desk.headers).status_code != 200


@pytest.mark.parametrize("size", [1 << 17, None])
@pytest.mark.parametrize("path", ["start", "stop", "resume", "notes"])
def test_requests_too_large_or_too_deep_are_refused(
    page: Page, path: str, size: int | None
) -> None:
    """Even without a length in the header, and if they are nested too deeply for a parser."""
    desk = Desk(page)
    content = b"[" * 50_000 if size is None else b'{"name": "' + b"x" * size + b'"}'
    pieces = (content[n : n + 1000] for n in range(0, len(content), 1000))  # without its length
    answer = desk.client.post(f"/api/{path}", content=pieces, headers=desk.headers)
    assert answer.status_code == 400
    expected = "the request must be a JSON object" if size is None else "the request is too large"
    assert answer.json()["error"] == expected
