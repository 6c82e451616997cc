"""`--json`: one document on standard output, everything for people on standard error."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sdfeel.bench import scale
from sdfeel.cli import app, main
from tests.cli.command import Outcome, call, settings

pytestmark = pytest.mark.usefixtures("_undrawn")

OWN = """
from torch import nn
print("imported")

def make():
    print("made")
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


def parsed(outcome: Outcome) -> Any:
    """The one document on standard output; NaN and Infinity are not JSON."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out, parse_constant=refuse)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.chdir(tmp_path)
    if "comparison" not in request.node.name:  # drawing takes longer than these runs
        monkeypatch.setattr("sdfeel.report.drawing.save", lambda *given: None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    directory = tmp_path_factory.mktemp("json") / "run"
    return directory, call("run", *settings(), "--out", directory, "--json")


@pytest.mark.parametrize(
    "arguments",
    [
        ("schemes",),
        ("topology",),
        ("topology", "star", "--servers", "1"),
        ("topology", "ring", "--servers", "2"),
        ("data",),
        ("data", "show", *settings()),
        ("init",),
    ],
    ids=" ".join,
)
def test_a_command_prints_exactly_one_document(arguments: tuple[str, ...]) -> None:
    outcome = call(*arguments, "--json")
    assert parsed(outcome)
    assert outcome.err == ""


def test_a_run_prints_its_result_for_scripts_and_its_progress_for_people(
    finished: tuple[Path, Outcome],
) -> None:
    directory, outcome = finished
    told = parsed(outcome)
    assert told["run"] == str(directory)
    assert told["scheme"] == "sd-feel"
    assert (told["iterations"], told["rounds"]) == (20, 4)
    assert told["virtual_seconds"] > 0
    assert told["bytes"] > 0
    assert 0 <= told["accuracy"] <= 1
    assert told["loss"] > 0
    assert len(told["model_sha256"]) == 64
    assert "round 4/4" in outcome.err


def test_show_prints_the_same_as_the_run(finished: tuple[Path, Outcome]) -> None:
    directory, outcome = finished
    assert parsed(call("show", directory, "--json")) == parsed(outcome)


def test_weights_are_given_by_receiver() -> None:
    told = parsed(call("topology", "star", "--servers", "6", "--json"))
    assert {"zeta", "edges", "weights"} <= told.keys()
    assert told["edges"] == [[0, d] for d in range(1, 6)]
    assert all(abs(sum(row) - 1) < 1e-9 for row in told["weights"])


def test_without_json_the_table_is_the_output_and_progress_is_not() -> None:
    outcome = call("run", *settings(model_name="logistic"), "--out", "run")
    assert outcome.code == 0
    assert "accuracy" in outcome.out
    assert "round 4/4" not in outcome.out
    assert "round 4/4" in outcome.err


def test_a_model_that_prints_does_not_spoil_the_document() -> None:
    Path("own_printing.py").write_text(OWN)
    outcome = call("run", *settings(model_name="own_printing:make"), "--out", "run", "--json")
    assert parsed(outcome)["state"] == "finished"


def test_a_document_goes_to_the_standard_output_of_its_own_command() -> None:
    first, second = call("schemes", "--json"), CliRunner().invoke(app, ["schemes", "--json"])
    assert json.loads(second.stdout) == parsed(first)


def test_a_failed_command_prints_its_error_as_a_document() -> None:
    outcome = call("run", *settings(training_learning_rate="1e30"), "--out", "run", "--json")
    assert outcome.code != 0
    assert json.loads(outcome.out) == {"error": outcome.sentence.removeprefix("sdfeel: ")}


def test_what_is_not_a_number_becomes_null() -> None:
    """A loss that overflows must not make the document unreadable."""
    Path("own_blind.py").write_text(
        "from torch import nn\n"
        "class make(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(64, 10)\n"
        "    def forward(self, x):\n"
        "        return self.layer(x.flatten(1)) * (1 if self.training else float('inf'))\n"
    )
    outcome = call("run", *settings(model_name="own_blind:make"), "--out", "run", "--json")
    if outcome.code == 0:
        assert parsed(outcome)["loss"] is None
    else:  # stopping there is as good
        assert "finite" in outcome.sentence


def test_a_comparison_is_one_document_with_a_record_per_scheme() -> None:
    outcome = call("compare", *settings(), "--schemes", "sd-feel,fedavg", "--out", "c", "--json")
    told = parsed(outcome)
    assert [run["scheme"] for run in told["runs"]] == ["sd-feel", "fedavg"]
    assert Path(told["report"]).is_file()
    assert Path(told["picture"]).is_file()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("run", "--set", "training.iterations=many"), "training.iterations must be a whole"),
        (("run", "absent.toml"), "no experiment file absent.toml"),
        (("run", "--nonsense"), "the command line is wrong"),
        (("resume", "absent"), "absent"),
        (("show", "absent"), "absent"),
        (("compare", "--schemes", "nonsense"), "unknown scheme 'nonsense'"),
        (("plan", "--target-loss", "-1"), ""),
        (("bench", "scale", "--clients", "many"), "--clients must be whole numbers"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else "",
)
def test_a_command_that_fails_prints_exactly_one_document(
    arguments: tuple[str, ...], told: str
) -> None:
    outcome = call(*arguments, "--json")
    assert outcome.code != 0
    assert told in json.loads(outcome.out)["error"]
    assert outcome.err


def test_a_list_that_was_cut_short_is_a_document_still(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = scale.measured

    def once(point: scale.Point) -> scale.Grown:
        if point.clients > 4:
            raise KeyboardInterrupt
        return measured(point)

    monkeypatch.setattr(scale, "measured", once)
    options = ("--clients", "4,8", "--servers", "1", "--rounds", "1")
    outcome = call("bench", "scale", *options, "--json")
    assert outcome.code == 130
    assert [each["clients"] for each in json.loads(outcome.out)] == [4]


def test_a_terminal_that_knows_few_letters_shows_the_others_as_question_marks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setattr("sys.argv", ["sdfeel", "schemes"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    sys.stdout.flush()
    assert b"free-tracking" in written.getvalue()
