"""The whole planner on a small task, and its command."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sdfeel.core.errors import InputError
from sdfeel.core.events import Evaluated
from sdfeel.experiment.loading import checked, load
from sdfeel.experiment.schema import Experiment
from sdfeel.planning.goal import Goal
from sdfeel.planning.planner import Planner, Wishes, experiment_of
from sdfeel.planning.result import Plan
from sdfeel.report.plan import reasons, table
from sdfeel.run.session import start
from tests.cli.command import call

SMALL = (
    "network.clients=6",
    "network.servers=3",
    "training.iterations=60",
    "evaluation.train_examples=50",
)
WORDS = [word for setting in SMALL for word in ("--set", setting)]


def planned(wishes: Wishes, *more: str) -> tuple[Experiment, Plan]:
    base = load(None, [*SMALL, *more])
    planner = Planner(base, wishes)
    try:
        for _ in planner:
            pass
        return base, planner.plan()
    finally:
        planner.close()


@pytest.fixture(scope="module")
def found() -> tuple[Experiment, Plan]:
    return planned(Wishes(Goal("accuracy", 0.7), effort=4), "training.learning_rate=0.02")


def test_a_plan_reaches_its_goal_sooner_than_the_experiment_as_given(
    found: tuple[Experiment, Plan],
) -> None:
    _, plan = found
    assert plan.finished
    assert plan.winner is not None
    assert plan.winner.seconds is not None
    assert plan.winner.score is not None
    assert plan.winner.score >= 0.7
    assert plan.given is not None
    assert plan.given.seconds is None or plan.given.seconds >= plan.winner.seconds
    times = [row.seconds for row in plan.rows if row.seconds is not None]
    assert times == sorted(times)
    assert plan.steps <= 1.3 * 4 * plan.run_steps
    assert not any(row.ran for row in plan.rows[sum(row.ran for row in plan.rows) :])


def test_the_verified_time_is_what_a_run_of_the_experiment_shows(
    found: tuple[Experiment, Plan], tmp_path: Path
) -> None:
    base, plan = found
    best = experiment_of(base, plan)
    assert best is not None
    assert best.training.target_accuracy == 0.7
    agrees_with_a_run(base, plan, tmp_path / "run")


def agrees_with_a_run(base: Experiment, plan: Plan, directory: Path) -> None:
    """The winner's pilot run and a run of it measure the same at the same moments."""
    assert plan.winner is not None
    best = experiment_of(base, plan)
    assert best is not None
    values = best.model_dump()
    values["evaluation"]["every"] = 1
    events = [e for e in start(checked(values), directory) if isinstance(e, Evaluated)]
    by_moment = {event.seconds: event.accuracy for event in events}
    shared = [point for point in plan.winner.points if point.seconds <= events[-1].seconds]
    assert shared
    for point in shared:
        assert by_moment[point.seconds] == point.accuracy


@pytest.mark.parametrize(
    "settings",
    [
        ("radio.fading=rayleigh", "latency.late=drop", "latency.deadline_seconds=0.05"),
        pytest.param(("latency.late=equalise", "radio.rates=distance"), marks=pytest.mark.slow),
        pytest.param(("network.link_chance=0.5",), marks=pytest.mark.slow),
        ("compression.uplink=top-k", "compression.share=0.2"),
    ],
    ids=["late", "shared bandwidth", "links come and go", "compressed"],
)
def test_pilot_runs_honour_what_the_experiment_says(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    schemes = ("sd-feel",)  # whatever wins: this is about its runs
    base, plan = planned(Wishes(Goal("accuracy", 0.5), schemes, effort=1), *settings)
    agrees_with_a_run(base, plan, tmp_path / "run")


def test_a_setting_that_nobody_finishes_before_the_deadline_is_not_a_candidate() -> None:
    wishes = Wishes(Goal("accuracy", 0.9), ("sd-feel", "hierfavg"), effort=0)
    slow = ("devices.gflops=0.001", "latency.late=drop")
    _, plan = planned(wishes, *slow, "latency.deadline_seconds=0.1")
    assert {row.options["tau1"] for row in plan.rows} < {1, 2, 5, 10, 20, 50}
    assert 50 not in {row.options["tau1"] for row in plan.rows}
    only_cloud = Wishes(Goal("accuracy", 0.9), ("fedavg",), effort=0)
    with pytest.raises(InputError, match="nobody can meet with any of these schemes and periods: "):
        planned(only_cloud, *slow, "latency.deadline_seconds=0.04", "scheme.tau1=1")


def test_the_table_and_the_reasons_name_the_winner(found: tuple[Experiment, Plan]) -> None:
    _, plan = found
    assert plan.winner is not None
    assert table(plan).row_count == 13
    text = " ".join(reasons(plan))
    given, assumed = found[0].latency.model_fields_set, " ".join(plan.assumed)
    assert "latency.client_server_mbps = 5" in assumed or "client_server_mbps" in given
    assert assumed == "" or f"This assumes {plan.assumed[0]}" in text
    assert not [key for key in given if f"latency.{key} " in assumed]
    assert plan.winner.label in text
    assert "an iteration takes" in text


def test_a_record_is_json_and_keeps_every_measurement(found: tuple[Experiment, Plan]) -> None:
    _, plan = found

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    document = json.loads(json.dumps(plan.record(points=True)), parse_constant=refuse)
    assert document["winner"]["label"] == document["rows"][0]["label"]
    assert document["rows"][0]["points"][-1]["accuracy"] >= 0.7
    assert "points" not in plan.record()["rows"][0]


def test_a_budget_and_a_loss_are_goals_too() -> None:
    _, plan = planned(Wishes(Goal("budget", 0.4), effort=2))
    assert plan.winner is not None
    assert plan.winner.pilot_seconds <= 0.4
    scores = [row.score for row in plan.rows if row.score is not None]
    assert scores == sorted(scores, reverse=True)
    _, plan = planned(Wishes(Goal("loss", 1.5), effort=2))
    assert plan.winner is not None
    assert plan.winner.score is not None
    assert plan.winner.score >= -1.5


def test_without_a_goal_the_experiment_as_given_sets_it() -> None:
    _, plan = planned(Wishes(effort=2))
    assert plan.goal.kind == "accuracy"
    assert plan.given is not None
    assert plan.given.score is not None
    assert plan.goal.value <= plan.given.score < plan.goal.value + 0.01


def test_without_effort_candidates_are_only_ranked() -> None:
    _, plan = planned(Wishes(Goal("accuracy", 0.9), effort=0))
    assert plan.finished
    assert plan.winner is None
    assert not any(row.ran for row in plan.rows)
    bounds = [row.bound_seconds for row in plan.rows]
    assert bounds == sorted(bounds)
    assert "Nothing was simulated" in " ".join(reasons(plan))


def test_a_stopped_planner_keeps_what_it_found() -> None:
    planner = Planner(load(None, SMALL), Wishes(Goal("accuracy", 0.99), effort=4))
    news: Iterator[Any] = iter(planner)
    while not next(news).track.steps:
        pass
    planner.stop()
    assert len(list(news)) < 20
    plan = planner.plan()
    planner.close()
    assert not plan.finished
    assert 0 < sum(row.ran for row in plan.rows) < 20


@pytest.mark.parametrize("effort", [0.3, 1.0])
@pytest.mark.parametrize(
    ("wish", "more"),
    [
        (Goal("accuracy", 0.99), ("devices.spread=100", "latency.client_server_mbps=0.1")),
        (None, ("devices.spread=40", "scheme.name=async-sd-feel")),
        (Goal("budget", 3.0), ("devices.spread=100", "devices.gflops=0.001")),
    ],
    ids=["never reached", "as given", "a budget"],
)
def test_a_plan_costs_what_it_may_or_says_what_it_could_not_do(
    effort: float, wish: Goal | None, more: tuple[str, ...]
) -> None:
    """Devices are very unequal: some ways to train are cheap in time and dear in steps."""
    try:
        _, plan = planned(Wishes(wish, effort=effort), *more, "training.iterations=40")
    except InputError as error:
        assert "raise it, or give a target" in str(error)  # noqa: PT017
        assert effort < 1
        return
    assert plan.steps <= 1.3 * effort * plan.run_steps
    if plan.winner is None:
        assert any("raise --effort" in sentence for sentence in plan.short) or effort >= 1


def test_the_rates_of_schemes_that_correct_drift_are_smaller() -> None:
    _, plan = planned(Wishes(Goal("accuracy", 0.9), ("sd-feel", "k-gt"), effort=0))
    rates = {
        name: {row.learning_rate for row in plan.rows if row.scheme == name}
        for name in ("sd-feel", "k-gt")
    }
    assert min(rates["k-gt"]) <= min(rates["sd-feel"])
    assert max(rates["k-gt"]) < max(rates["sd-feel"])


def test_schemes_that_the_experiment_rules_out_are_left_out() -> None:
    late = ("latency.late=drop", "latency.deadline_seconds=5")
    _, plan = planned(Wishes(Goal("accuracy", 0.9), ("sd-feel", "free-tracking"), effort=0), *late)
    assert {row.scheme for row in plan.rows} == {"sd-feel"}
    with pytest.raises(InputError, match="needs every cluster in every round"):
        planned(Wishes(Goal("accuracy", 0.9), ("free-tracking",), effort=0), *late)


def test_exact_sequences_are_candidates_where_links_allow_them() -> None:
    wishes = Wishes(Goal("accuracy", 0.9), ("sd-feel", "k-gt"), effort=0)
    more = ("network.servers=4", "network.clients=8")
    _, ring = planned(wishes, *more)
    _, full = planned(wishes, *more, "network.graph=complete")
    assert not {row.mixing for row in ring.rows} & {"base-2", "one-peer-exponential"}
    sequences = {row.mixing: row for row in full.rows if row.mixing in ("base-2", "base-3")}
    assert {row.scheme for row in sequences.values()} == {"sd-feel"}  # k-gt needs a constant matrix
    assert sequences["base-2"].options["alpha"] == 2  # exchanges of one pass


def test_links_are_chosen_only_when_asked() -> None:
    wishes = Wishes(Goal("accuracy", 0.9), ("sd-feel",), choose_graph=True, effort=0)
    _, plan = planned(wishes, "network.servers=5", "network.clients=10")
    _, fixed = planned(Wishes(Goal("accuracy", 0.9), ("sd-feel",), effort=0))
    assert {row.graph for row in fixed.rows} == {"ring"}
    assert plan.candidates > fixed.candidates
    # All links at once cost no more time, and agree at once.
    assert plan.rows[0].graph == "complete"


def test_unequal_devices_bring_asynchronous_candidates() -> None:
    _, plan = planned(Wishes(Goal("accuracy", 0.9), effort=0), "devices.spread=8")
    _, equal = planned(Wishes(Goal("accuracy", 0.9), effort=0))
    assert plan.candidates > equal.candidates


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--target-accuracy", "1.2"],
            "target accuracy must be above 0 and at most 1, got 1.2",
        ),
        (["--budget", "0"], "the budget must be above 0, got 0"),
        (["--target-loss", "-1"], "the target loss must be above 0, got -1"),
        (["--budget", "1", "--target-loss", "1"], "a plan has one goal"),
        (["--schemes", "sd-fel"], "unknown scheme to plan 'sd-fel': did you mean 'sd-feel'?"),
        (["--schemes", "async-sd-feel"], "planned only where devices are unequal"),
        (["--schemes", ","], "no scheme to plan with"),
        (["--effort", "-1"], "--effort must be at least 0 runs, got -1"),
        (["--set", "training.momentum=0.9"], "plans are made for plain SGD"),
        (["--choose-graph", "--set", "network.changes=x"], "cannot be used with network.changes"),
    ],
)
def test_bad_input_is_reported_in_one_sentence(arguments: list[str], sentence: str) -> None:
    outcome = call("plan", *WORDS, *arguments)
    assert outcome.code == 1
    assert sentence in outcome.sentence
    assert "Traceback" not in outcome.err


@pytest.mark.usefixtures("_drawn")
def test_the_command_writes_an_experiment_a_picture_and_a_record(tmp_path: Path) -> None:
    outcome = call(
        "plan",
        *WORDS,
        "--target-accuracy",
        "0.6",
        "--effort",
        "1",
        "--out",
        tmp_path / "p",
        "--json",
    )
    assert outcome.code == 0, outcome.err
    document = json.loads(outcome.out)
    assert document["winner"]["seconds"] is not None
    assert (tmp_path / "p" / "plan.png").stat().st_size > 10_000
    assert json.loads((tmp_path / "p" / "plan.json").read_text())["goal"]["value"] == 0.6
    again = load(tmp_path / "p" / "best.toml")
    assert again.scheme.name == document["winner"]["scheme"]
    assert again.training.learning_rate == document["winner"]["learning_rate"]


def test_the_command_prints_a_table(tmp_path: Path) -> None:
    outcome = call(
        "plan", *WORDS, "--target-accuracy", "0.6", "--effort", "1", "--out", tmp_path / "p"
    )
    assert outcome.code == 0, outcome.err
    assert "Plan: 60 % accuracy as soon as possible" in outcome.out
    assert f"run it with: sdfeel run {tmp_path}" in outcome.out


def test_the_effort_of_commands_and_planner_agree() -> None:
    from sdfeel.cli.bench import networks
    from sdfeel.cli.plan import plan as command
    from sdfeel.planning.candidates import SCHEMES
    from sdfeel.planning.planner import EFFORT

    defaults = command.__defaults__
    assert defaults is not None
    assert EFFORT in defaults
    assert EFFORT in (networks.__defaults__ or ())
    assert ",".join(SCHEMES) in defaults


def test_bad_plan_goals_are_refused_from_python_too() -> None:
    with pytest.raises(InputError, match="the budget must be above 0"):
        Goal("budget", -1)
