"""Every pair of options is refused in a sentence, or does what it should."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sdfeel
from sdfeel.core.events import Event, Finished, Round
from sdfeel.core.mixing import of_matrix
from sdfeel.experiment.build import build_model, prepare
from tests.pairs.known import KNOWN, Known
from tests.pairs.options import PEOPLE, Choice, Place, parsed, place, text, write_people
from tests.pairs.suite import (
    Found,
    alone,
    few,
    ignored,
    judged,
    of_refusal,
    refused_pairs,
    rows,
    still_wrong,
)
from tests.pairs.trial import Refused, events_of, mean_drift, story_violations

CHUNKS = range(40)  # parts that are handed to whichever core is free
FEW = range(10)
BY_HAND = (  # what sdfeel.Run takes, too
    *("scheme", "channel", "fading", "links", "devices", "partition", "clusters", "overlap"),
    *("graph", "mixing", "optimizer", "training", "engine", "model", "stop"),
)


@pytest.fixture(scope="session")
def where(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return place(tmp_path_factory.mktemp("files"))


def told(found: list[Found]) -> str:
    return "\n".join(map(str, found))


@pytest.mark.parametrize("chunk", FEW)
def test_every_value_runs_as_it_should(chunk: int, where: Place, tmp_path: Path) -> None:
    """Some of the pairs at once; all of them are for `make test-slow`."""
    found: list[Found] = []
    for n in few()[chunk :: len(FEW)]:
        found += judged(where, rows()[n], tmp_path / "run", stop_at=(n % 10) / 10)
    assert not found, told(found)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", CHUNKS)
def test_every_pair_is_refused_or_runs_as_it_should(
    chunk: int, where: Place, tmp_path: Path
) -> None:
    """What is killed and resumed is every value, above, and a third of these.

    All of them: `python -m tests.pairs`.
    """
    found: list[Found] = []
    numbered = enumerate([*rows(), *refused_pairs()])
    others = [(n, row) for n, row in numbered if n not in few()]
    for n, row in others[chunk :: len(CHUNKS)]:
        stop_at = (n % 10) / 10 if n % 3 == 0 else None
        found += judged(where, row, tmp_path / "run", stop_at)
    assert not found, told(found)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", CHUNKS)
def test_no_option_is_passed_over_silently(chunk: int, where: Place, tmp_path: Path) -> None:
    found: list[Found] = []
    for scheme, factor, value in alone()[chunk :: len(CHUNKS)]:
        found += ignored(where, scheme, factor, value, tmp_path / "run")
    assert not found, told(found)


@pytest.mark.parametrize(
    "choice",
    [  # a rule for a mean of nobody
        "scheme=fedcs-strict outages=servers robust=median personal=adapters counted=overheads",
    ],
)
def test_what_was_wrong_with_several_options_stays_mended(
    choice: str, where: Place, tmp_path: Path
) -> None:
    found = judged(where, parsed(choice), tmp_path / "run")
    assert not found, told(found)


@pytest.mark.parametrize(
    "choice",
    [
        "scheme=sd-feel late=drop engine=parallel",
        "scheme=async-sd-feel fading=rayleigh clusters=by_label",
        "scheme=scaffold-few uplink=top-k stop=accuracy",
        "scheme=hierfavg personal=fedper outages=servers",
        "scheme=free-tracking robust=median attack=backdoor",
    ],
)
def test_people_in_a_table_are_clients_beside_other_options(choice: str, tmp_path: Path) -> None:
    where = place(tmp_path / "files", more=PEOPLE)
    write_people(tmp_path / "files" / "digits.csv")
    found = judged(where, parsed(choice), tmp_path / "run")
    assert not found, told(found)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: f"{known.kind}-{known.choice}")
def test_what_is_known_to_be_wrong_still_is(known: Known, where: Place, tmp_path: Path) -> None:
    mended = f"'{known.choice}' is fixed: remove it from tests/pairs/known.py"
    assert still_wrong(where, known, tmp_path / "run"), mended


@pytest.mark.parametrize("n", range(0, 24, 2))
def test_python_and_experiment_agree(n: int, where: Place, tmp_path: Path) -> None:
    """The same scheme, network, model and data by hand, for a sample of the rows."""
    choice, by_file = next(_told_by_file(where, 7 * n % len(rows()), tmp_path / "run"))
    by_hand = by_python(where, choice)
    assert outcome(by_hand) == outcome(by_file), text(choice)


def _told_by_file(
    where: Place, first: int, directory: Path
) -> Iterator[tuple[Choice, list[Event]]]:
    """Rows from `first` on with what becomes of them, less what only files can say."""
    for row in rows()[first:]:
        choice: Choice = {factor: row[factor] for factor in BY_HAND if factor in row}
        with suppress(Refused):  # for a reason that the whole row's refusal had hidden
            yield choice, events_of(where, choice, directory)


def by_python(where: Place, choice: Choice) -> list[Event]:
    ready = prepare(where.experiment(choice))
    training = ready.experiment.training
    options = dict(training.optimizer_options)
    options |= {"momentum": training.momentum} if training.momentum else {}
    options |= {"weight_decay": training.weight_decay} if training.weight_decay else {}
    ready.engine.close()
    return list(
        sdfeel.Run(
            ready.scheme,
            ready.net,
            build_model(ready.experiment, ready.data),
            ready.data,
            iterations=training.iterations,
            learning_rate=training.learning_rate,
            batch_size=training.batch_size,
            optimizer=training.optimizer,
            optimizer_options=options,
            proximal=training.proximal,
            schedule=training.schedule,
            warmup=training.warmup,
            clip_norm=training.clip_norm,
            average=training.average,
            cost=ready.cost,
            evaluate_every=ready.experiment.evaluation.every,
            target_accuracy=training.target_accuracy,
            max_seconds=training.max_seconds,
            seed=ready.experiment.seed,
            engine=training.engine,
            workers=training.workers,
        )
    )


def outcome(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


# Each check must be able to fail.


@pytest.fixture(scope="session")
def story(where: Place, tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    return events_of(where, {"scheme": "sd-feel"}, tmp_path_factory.mktemp("story") / "run")


def spoiled(story: list[Event], **values: object) -> list[str]:
    """The violations of a story whose third round is changed."""
    at = [n for n, event in enumerate(story) if isinstance(event, Round)][2]
    events = [*story[:at], replace(story[at], **values), *story[at + 1 :]]  # type: ignore[arg-type]
    return [violation.kind for violation in story_violations(events)]


def test_a_story_that_does_not_add_up_is_found(story: list[Event]) -> None:
    assert story_violations(story) == []
    assert spoiled(story, bytes=1) == ["story"]
    assert spoiled(story, seconds=0.0) == ["story"]
    assert spoiled(story, energy={"computing": 9.0})[0] == "energy"
    assert spoiled(story, phases={"mix": -1.0}) == ["energy"]
    assert [each.kind for each in story_violations(story[:-1])] == ["endless"]


def test_a_model_that_did_not_learn_is_found(story: list[Event]) -> None:
    first, last = (n for n, event in enumerate(story) if hasattr(event, "loss"))
    worse = [*story[:last], replace(story[last], loss=99.0), *story[last + 1 :]]  # type: ignore[arg-type]
    endless = [*story[:first], replace(story[first], loss=float("inf")), *story[first + 1 :]]  # type: ignore[arg-type]
    assert [each.kind for each in story_violations(worse)] == ["no progress"]
    assert [each.kind for each in story_violations(endless)] == ["not finite"]


def test_a_mixing_that_loses_the_mean_is_found() -> None:
    assert mean_drift(of_matrix([[0.5, 0.5], [0.5, 0.5]]), mass=np.array([0.5, 0.5])) == 0
    assert mean_drift(of_matrix([[0.5, 0.5], [0.5, 0.5]]), mass=np.array([0.3, 0.7])) > 0.1


def test_a_refusal_must_name_both_options(where: Place) -> None:
    crowded = replace(where, base=(*where.base, "network.imbalance=9"))  # refused in any company
    found = [each.sentence for each in of_refusal(crowded, {"scheme": "d2", "graph": "star"})]
    assert [sentence.partition(":")[0] for sentence in found] == [
        "it does not name scheme=d2, graph=star"
    ]
