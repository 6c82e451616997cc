"""Data sets that are read anew at every step, and the shapes in which others' data come."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sdfeel
from sdfeel.core.errors import InputError, SdfeelError
from sdfeel.core.events import Finished
from sdfeel.core.run_files import NODE, NODES
from sdfeel.data.adapters import HowToRead
from sdfeel.data.federated import examples
from sdfeel.deploy.files import read_node
from sdfeel.deploy.node import federation_of, own_engine, own_examples, trainer
from sdfeel.deploy.node_directories import make, on_loopback
from sdfeel.engine.base import Task
from sdfeel.experiment.build import prepare
from sdfeel.experiment.build_data import build_data
from sdfeel.experiment.loading import load


class Shaken:
    """Examples that are another each time, by all three generators."""

    def __init__(self, count: int = 40, lazy: bool = False) -> None:
        draws = torch.Generator().manual_seed(0)
        self.x, self.y = torch.randn(count, 4, generator=draws), torch.arange(count) % 4
        self.lazy = lazy

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, n: int) -> tuple[Tensor, int]:
        noise = torch.randn(4) + float(np.random.normal()) + random.random()  # noqa: NPY002
        return self.x[n] + 0.1 * noise, int(self.y[n])


def shaken() -> tuple[Any, Any]:
    return sdfeel.lazy(Shaken()), Shaken(8)


def still() -> tuple[Any, Any]:
    return Shaken(), Shaken(8)


SMALL = (
    "network.clients=4",
    "network.servers=2",
    "training.iterations=8",
    "scheme.tau1=2",
    "training.batch_size=3",
    "model.name=logistic",
    "data.classes_per_client=1",
    "evaluation.every=100",
)


def asked(*settings: str, name: str = "shaken") -> sdfeel.Experiment:
    return load(None, (*SMALL, f"data.name={__name__}:{name}", *settings))


def trained(*settings: str, name: str = "shaken") -> str:
    *_, end = sdfeel.Run(asked(*settings, name=name))
    assert isinstance(end, Finished)
    return end.model_sha256


@pytest.fixture(scope="module")
def bits() -> str:
    return trained("training.engine=loop")


def test_augmentation_is_random_and_the_same_seed_gives_the_same_bits(bits: str) -> None:
    assert bits == trained("training.engine=loop")
    assert bits != trained("training.engine=loop", "seed=1")
    once = trained("training.engine=loop", name="still")  # read once, always in the same way
    assert bits != once == trained("training.engine=loop", name="still")


def test_any_number_of_workers_gives_the_same_bits(bits: str) -> None:
    assert bits == trained("training.engine=parallel", "training.workers=2")


def test_the_key_the_attribute_and_the_wrapper_mean_the_same(
    bits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bits == trained("training.engine=loop", "data.lazy=true", name="still")
    monkeypatch.setattr(f"{__name__}.still", lambda: (Shaken(lazy=True), Shaken(8)))
    assert bits == trained("training.engine=loop", name="still")


def test_a_run_that_was_stopped_goes_on_with_the_same_examples(bits: str, tmp_path: Path) -> None:
    run = sdfeel.Run(
        asked("training.engine=loop", "checkpoint.every_seconds=0"), out=tmp_path / "r"
    )
    for event in run:
        if isinstance(event, sdfeel.Round) and event.number == 2:
            break
    *_, end = sdfeel.Run(asked("training.engine=loop"), out=tmp_path / "r")
    assert isinstance(end, Finished)
    assert end.model_sha256 == bits


def test_native_gives_way_and_says_why() -> None:
    ready = prepare(asked())
    assert ready.engine.name in ("parallel", "loop")
    assert "read lazily" in ready.why
    ready.engine.close()
    with pytest.raises(InputError, match=r"native engine cannot run this: .*lazily"):
        prepare(asked("training.engine=native"))


def test_every_step_draws_anew_and_reading_leaves_the_generators_as_they_were() -> None:
    lazily = examples(sdfeel.lazy(Shaken()))
    rows = torch.tensor([3, 5])
    torch.manual_seed(1)
    before = torch.random.get_rng_state(), random.getstate()
    numbers = np.random.get_state(legacy=True)[1]  # type: ignore[index]  # noqa: NPY002
    first, _ = lazily.batch(rows, (0, 1, 2))
    again, _ = lazily.batch(rows, (0, 1, 2))
    assert torch.equal(first, again)
    for address in ((1, 1, 2), (0, 2, 2), (0, 1, 3)):
        assert not torch.equal(first, lazily.batch(rows, address)[0])
    twice, _ = lazily.batch(torch.tensor([3, 3]), (0, 1, 2))
    assert not torch.equal(*twice)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert before[1] == random.getstate()
    assert (numbers == np.random.get_state(legacy=True)[1]).all()  # type: ignore[index]  # noqa: NPY002


def test_a_part_alone_is_read_as_in_the_whole() -> None:
    """A deployed client, who has its own examples only, reads what a simulated one reads."""
    whole = examples(sdfeel.lazy(Shaken()))
    own = np.array([2, 7, 9])
    part = whole.some(own)
    inside, outside = torch.tensor([2, 0]), torch.tensor([9, 2])
    found, meant = part.batch(inside, (0, 1, 2)), whole.batch(outside, (0, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(found, meant, strict=True))


def test_a_deployed_client_reads_the_same_examples(tmp_path: Path) -> None:
    ready = prepare(asked("training.engine=loop"))
    make(ready, tmp_path, on_loopback(2))
    node = read_node(tmp_path / NODES / "client-3" / NODE)
    own = own_examples(node, 3)
    assert own.reads_anew
    task = Task(3, ready.engine.initial(), steps=3, first=2)
    found = trainer(own_engine(node, 3, own, federation_of(node)[1]))(task)
    assert torch.equal(found, next(ready.engine.train([task])))


class Secretive(Shaken):
    """Draws from a generator of its own, which nobody can seed."""

    def __init__(self) -> None:
        super().__init__()
        self.draws = np.random.default_rng(0)

    def __getitem__(self, n: int) -> tuple[Tensor, int]:
        return self.x[n] + float(self.draws.normal()), 0


def test_randomness_that_cannot_be_addressed_is_refused() -> None:
    with pytest.raises(InputError, match="another example each time"):
        examples(sdfeel.lazy(Secretive()))


class Broken(Shaken):
    def __getitem__(self, n: int) -> tuple[Tensor, int]:
        if n == 7:
            raise OSError("picture 7 is damaged")
        return super().__getitem__(n)

    @property
    def targets(self) -> list[int]:
        return [int(each) for each in self.y]


def broken() -> tuple[Any, Any]:
    return sdfeel.lazy(Broken()), Shaken(8)


def test_an_error_of_the_data_set_names_the_client_and_keeps_its_line() -> None:
    settings = ("evaluation.train_examples=1", "training.engine=loop", "training.batch_size=10")
    with pytest.raises(
        SdfeelError, match=r"client \d failed .*picture 7 is damaged.*test_lazy"
    ) as e:
        trained(*settings, name="broken")
    assert isinstance(e.value.__cause__, OSError)


ROWS = [{"user": n % 3, "height": n / 10, "weight": float(n), "label": n % 2} for n in range(6)]


def test_rows_of_named_columns_become_inputs_and_targets() -> None:
    found = examples(ROWS, HowToRead(group="user"))
    assert found.x.tolist() == [pytest.approx([n / 10, n]) for n in range(6)]
    assert found.y.tolist() == [0, 1] * 3
    other = examples(ROWS, HowToRead(inputs=("user",), target="height"))
    assert other.x.dtype == torch.int64
    assert other.y.is_floating_point()
    assert examples(ROWS, HowToRead(task="regression")).y.is_floating_point()


@pytest.mark.parametrize(
    ("data", "reading", "words"),
    [
        (ROWS, HowToRead(target="labl"), "no column 'labl': its columns are user, height"),
        (
            [{"a": 1, "b": 2}],
            HowToRead(),
            r"which column is the target\?",
        ),
        (
            [{"text": "good", "label": 1}],
            HowToRead(),
            "text of example 0 must be numbers, got text",
        ),
        ([((1, 2), 0), ((1, 2, 3), 0)], HowToRead(), r"example 1 has the shape \(3,\)"),
        ([3, 4, 5], HowToRead(), "example 0 of list is a int"),
        (([[0.0]], [0.5]), HowToRead(task="classification"), "class numbers, got 0.5"),
        (iter(()), HowToRead(), "got list_iterator|got tuple_iterator"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(
    data: Any, reading: HowToRead, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        examples(data, reading)


def tokens() -> tuple[Tensor, Tensor]:
    """Sequences that count up, from 16 places."""
    start = torch.arange(64) % 16
    rows = (start[:, None] + torch.arange(6)) % 16
    return rows, rows[:16]


class NextToken(nn.Module):
    """An embedding and a layer: whole numbers in, scores of every place out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(16, 8), nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.embed(x))
        return out


def test_a_language_model_learns_from_whole_numbers_with_the_loss_of_its_task() -> None:
    settings = ("data.task=language", "data.partition=iid", "training.learning_rate=2")
    run = sdfeel.Run(
        load(
            None,
            (*SMALL, *settings, f"data.name={__name__}:tokens", f"model.name={__name__}:NextToken"),
        )
    )
    measured = [each for each in run if isinstance(each, sdfeel.Evaluated)]
    first, last = measured[0].metrics["perplexity"], measured[-1].metrics["perplexity"]
    assert first > 10 > last
    assert measured[-1].accuracy is not None
    assert measured[-1].accuracy > (measured[0].accuracy or 0)


def line() -> tuple[Any, Any]:
    x = torch.linspace(-1, 1, 40)[:, None]
    return (x, 3 * x[:, 0] + 1), (x, 3 * x[:, 0] + 1)


def test_targets_that_are_numbers_make_a_regression_with_its_loss_and_metrics() -> None:
    run = sdfeel.Run(asked("data.partition=iid", "training.learning_rate=0.3", name="line"))
    measured = [each for each in run if isinstance(each, sdfeel.Evaluated)]
    assert measured[-1].metrics["r2"] > 0.9 > measured[0].metrics["r2"]
    assert set(measured[-1].metrics) == {"rmse", "r2"}
    assert measured[-1].accuracy is None
    with pytest.raises(InputError, match="not class numbers, which accuracy needs"):
        prepare(asked("data.partition=iid", "evaluation.per_client=accuracy", name="line"))


def test_whole_numbers_of_an_npz_file_stay_whole(tmp_path: Path) -> None:
    rows, few = (each.numpy() for each in tokens())
    np.savez(tmp_path / "t.npz", x_train=rows, y_train=rows, x_test=few, y_test=few)
    data = build_data(load(None, (*SMALL, f"data.name={tmp_path}/t.npz", "data.partition=iid")))
    assert data.train.x.dtype == data.train.y.dtype == torch.int64
    assert data.task == "labelling"
