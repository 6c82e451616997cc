"""A clip that is left out is chosen so that noise does not carry the model away; a given clip gets
a note if it does."""

import pytest

from sdfeel.experiment.build import Prepared, prepare
from sdfeel.experiment.loading import load

BASE = (
    *("network.clients=6", "network.servers=2", "model.name=logistic", "data.partition=iid"),
    *("training.iterations=40", "training.engine=loop", "evaluation.train_examples=20"),
    "privacy.protects=clients",
)


def ready(*settings: str) -> Prepared:
    return prepare(load(None, [*BASE, *settings]))


@pytest.mark.parametrize("more", [(), ("privacy.noise_in=sum",), ("training.iterations=400",)])
@pytest.mark.parametrize("noise", [0.001, 1, 5])
def test_the_noise_of_all_rounds_is_no_longer_than_the_model(
    noise: float, more: tuple[str]
) -> None:
    """Computed once more, from independent noise in every number, client and round."""
    made = ready(f"privacy.noise={noise}", *more)
    assert made.packing is not None
    assert made.packing.guard is not None
    first = made.engine.initial()
    numbers = first.numel() * made.rounds / len(made.net.clients)
    walked = made.packing.guard.deviation * numbers**0.5
    clip = made.experiment.privacy.clip
    assert clip == made.packing.guard.clip
    assert clip is not None
    if clip < 1:
        assert walked == pytest.approx(float(first.norm()), rel=0.06)  # two digits are kept
    else:
        assert clip == 1
        assert walked < float(first.norm())
    assert not any("carries the model" in note for note in made.notes)


def test_a_clip_that_lets_noise_carry_the_model_away_gets_a_note_with_a_better_one() -> None:
    (told,) = (note for note in ready("privacy.clip=100").notes if "carries the model" in note)
    safe = told.rpartition("lower privacy.clip to about ")[2].partition(",")[0]
    assert not any("carries" in note for note in ready(f"privacy.clip={safe}").notes)
    assert ready().experiment.privacy.clip == float(safe)


def test_examples_are_clipped_to_one_and_noiseless_clips_may_be_any() -> None:
    assert ready("privacy.protects=examples").experiment.privacy.clip == 1
    assert ready("privacy.noise=0").experiment.privacy.clip == 1
    assert ready("privacy.noise=0", "privacy.clip=7").experiment.privacy.clip == 7
