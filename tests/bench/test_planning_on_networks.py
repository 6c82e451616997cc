"""The bench of the planner on real networks, as far as it needs no hours."""

import json
from dataclasses import asdict
from math import inf
from pathlib import Path

import pytest

from sdfeel.bench import planning_on_networks
from sdfeel.bench.planning import Online
from sdfeel.bench.planning_on_networks import Found, compared, experiment, networks
from sdfeel.core.errors import InputError
from sdfeel.planning.planner import EFFORT
from tests.cli.command import call

FOUND = Found("topohub:topozoo/X", 7, "a", 2.0, "b", 1.6, None, 800, 90, 9000, effort=EFFORT)


def test_the_networks_are_the_same_every_time_and_differ_from_one_another() -> None:
    found = networks(30)
    assert found == networks(30)
    assert len(set(found)) == 30
    with pytest.raises(InputError, match="has 40 such networks, not 1000"):
        networks(1000)


def test_what_is_drawn_depends_on_the_network_alone() -> None:
    one, two = networks(30)[:2]
    assert experiment(one) == experiment(one)
    drawn = [
        (each.latency, each.devices, each.network.clients == 2 * each.network.servers)
        for each in map(experiment, (one, two))
    ]
    assert drawn[0] != drawn[1]
    assert drawn[0][2] is drawn[1][2] is True


def test_a_choice_is_judged_by_the_best_of_the_grid() -> None:
    assert FOUND.behind == 1.25
    nothing = Found("n", 7, None, None, "b", 1.6, None, 800, 90, 9000)
    assert nothing.behind == inf
    assert (
        Found("n", 7, None, None, None, None, None, 800, 90, 9000).behind == 1
    )  # nor had the grid


def test_periods_chosen_online_are_shown_beside_the_best_fixed_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = Online("Abilene", 0.05, None, "sd-feel tau1=10 rate=0.05", 0.49, 0.551)
    monkeypatch.setattr(planning_on_networks, "online", lambda name: told)
    outcome = call("bench", "networks", "--online", "--count", "1")
    assert outcome.code == 0, outcome.err
    assert "Abilene" in outcome.out
    assert "never" in outcome.out


def test_finished_networks_are_kept_and_damaged_ones_named(tmp_path: Path) -> None:
    file = tmp_path / "Abilene.json"
    file.write_text(json.dumps(asdict(FOUND)))
    assert compared("topohub:topozoo/Abilene", tmp_path) == FOUND
    outcome = call("bench", "networks", "--count", "1", "--out", tmp_path)
    assert outcome.code == 0, outcome.err
    assert "within 5 %: 0 of 1" in " ".join(outcome.out.split())
    again = compared("topohub:topozoo/Abilene", tmp_path, effort=0.0)  # planned anew, but only that
    assert (again.best, again.best_seconds, again.effort) == (FOUND.best, FOUND.best_seconds, 0.0)
    assert again.choice is None  # without effort nothing runs
    file.write_text("{")
    with pytest.raises(InputError, match="is damaged: remove it"):
        compared("topohub:topozoo/Abilene", tmp_path)
