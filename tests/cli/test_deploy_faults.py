"""Real processes die and links are cut: what the documents promise is what the logs show."""

import re
from pathlib import Path

import pytest

from sdfeel.core.errors import InputError
from sdfeel.deploy.files import PolicySection, read_policy
from sdfeel.deploy.local import LocalDeployment
from sdfeel.deploy.replay import ARRIVALS, replay
from sdfeel.run.drive import fingerprint
from tests.cli.command import call
from tests.live import partitions, stage, trials


def shown(report: stage.Report) -> str:
    text = "\n".join(report.lines)
    assert report.good, text
    return text


@pytest.mark.slow
def test_a_dead_client_costs_one_deadline(tmp_path: Path) -> None:
    text = "\n".join(trials.dead_client(tmp_path / "run", deadline=3.0).lines)
    assert "went on without client-0 from round" in text
    closed, _ = re.findall(r"(\d+\.\d+) s", text)
    assert float(closed) >= 3.0


@pytest.mark.slow
def test_clients_of_a_server_that_died_for_good_work_for_its_neighbour(tmp_path: Path) -> None:
    text = shown(trials.dead_edge(tmp_path / "run"))
    assert "edge-1 goes on without edge-2" in text
    assert "works for edge-1, its own server is away" in text
    table = call("deploy", "status", tmp_path / "run").out
    assert re.search(r"edge-1 +finished.*guests client-\d, client-\d", table)
    assert re.search(r"client-\d .*guest of edge-1", table)
    own = (tmp_path / "run" / "nodes" / "edge-1" / "events.jsonl").read_text()
    assert "works for edge-1, its own server is away" in own


@pytest.mark.slow
def test_nobody_moves_where_servers_are_waited_for(tmp_path: Path) -> None:
    shown(trials.awaited_edge(tmp_path))


@pytest.mark.slow
def test_a_cut_link_is_waited_for_and_changes_nothing(tmp_path: Path) -> None:
    shown(partitions.waiting_partition(tmp_path, seconds=5.0))


@pytest.mark.slow
def test_both_sides_of_a_cut_link_continue_and_join_again_if_the_policy_says_so(
    tmp_path: Path,
) -> None:
    shown(partitions.dropping_partition(tmp_path, seconds=0.0, rounds=95))


@pytest.mark.slow
def test_all_processes_killed_at_once_continue_where_they_were(tmp_path: Path) -> None:
    shown(trials.power_cut(tmp_path))


@pytest.mark.slow
def test_models_with_impossible_numbers_are_refused_and_the_rounds_complete(
    tmp_path: Path,
) -> None:
    text = shown(trials.poison(tmp_path / "run"))
    assert text.count("has values that are not finite") == 2
    assert "exceeds the bound of 1000" in text


@pytest.mark.slow
def test_a_full_disk_is_reported_in_a_sentence_and_costs_no_bit(tmp_path: Path) -> None:
    shown(trials.full_disk(tmp_path))
    found = call("deploy", "audit", tmp_path / "full")
    assert re.search(r"edge-1 +whole", found.out), found.out
    log = tmp_path / "full" / "nodes" / "edge-0" / "audit.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([lines[0].replace('"calls": 1', '"calls": 2'), *lines[1:]]))
    found = call("deploy", "audit", tmp_path / "full")
    assert found.code == 1
    assert "audit.jsonl, line 1, does not follow from the one before" in found.out + found.err


ASYNCHRONOUS = ("scheme.name=async-sd-feel", "scheme.staleness=hearsay", "devices.spread=3")


@pytest.mark.slow
def test_asynchronous_servers_continue_without_a_dead_one(tmp_path: Path) -> None:
    experiment = stage.experiment(30, *ASYNCHRONOUS)
    policy = PolicySection(dead_edge="drop", edge_deadline=1.0)
    deployment = LocalDeployment(experiment, tmp_path / "run", policy)
    act = stage.Once(6, lambda: deployment.processes.lose("edge-2"))
    story = stage.play(deployment, act, pause=0.3)
    last = stage.records(tmp_path / "run", 1)[-1]
    assert 2 in last["away"]  # on a busy machine another one may be late as well
    assert set(last["guests"]) <= {int(client) for client in last["steps"]}
    assert last["guests"], story.told
    assert story.accuracy > 0.5
    assert not (tmp_path / "run" / ARRIVALS).exists()  # no simulation leaves a server out


@pytest.mark.slow
def test_clients_that_measure_their_own_pace_can_be_repeated_in_the_simulator(
    tmp_path: Path,
) -> None:
    experiment = stage.experiment(12, *ASYNCHRONOUS, "scheme.deadline=0.05")
    policy = PolicySection(pace="measured")
    story = stage.play(
        LocalDeployment(experiment, tmp_path / "run", policy), lambda event: None, pause=0.0
    )
    assert fingerprint(replay(tmp_path / "run")) == story.finished.model_sha256
    steps = [
        count
        for d in range(3)
        for record in stage.records(tmp_path / "run", d)
        for count in record["steps"].values()
    ]
    assert min(steps) == 1  # before the first measurement
    assert max(steps) > 1


def test_a_policy_is_given_in_words_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    found = read_policy(["dead_edge=drop", "edge_deadline=2.5", "keep_measured=7"])
    assert (found.dead_edge, found.edge_deadline, found.keep_measured) == ("drop", 2.5, 7)
    for words, told in {
        "dead_edge=panic": "dead_edge must be 'wait' or 'drop'",
        "dead_egde=drop": "did you mean 'dead_edge'",
        "drop": "write key=value, such as dead_edge=drop",
        "edge_deadline=0": "edge_deadline must be above 0",
    }.items():
        with pytest.raises(InputError, match=told):
            read_policy([words])
    outcome = call("deploy", "init", tmp_path / "f", "--policy", "dead_edge=panic")
    assert (outcome.code, "dead_edge must be" in outcome.sentence) == (1, True)
