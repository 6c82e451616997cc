"""Tables and pictures in files, and whose they are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import sdfeel
from sdfeel.core.errors import DataError, InputError
from sdfeel.core.events import Evaluated, Finished
from sdfeel.data.federated import Dataset, by_users
from sdfeel.data.partition import of_values
from sdfeel.data.tables import held_out
from sdfeel.experiment.build import prepare
from sdfeel.experiment.build_data import build_data
from sdfeel.experiment.loading import load

SMALL = ("network.clients=2", "network.servers=1", "data.partition=iid")


def read(name: Path, *settings: str) -> sdfeel.Federated:
    return build_data(load(None, (*SMALL, f"data.name={name}", *settings)))


def table(path: Path, text: str) -> sdfeel.Federated:
    path.write_text(text)
    return read(path, "data.target=price")


ROWS = "".join(f"{n},{n / 2},{n * 1.5}\n" for n in range(10))


def test_an_empty_table_and_a_row_without_its_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("")
    with pytest.raises((DataError, InputError), match="no columns: is the file empty"):
        read(tmp_path / "t.csv")
    rows = [{"x": [1.0], "label": n % 2} for n in range(9)]
    with pytest.raises(InputError, match="example 9 has no column 'label', which others have"):
        sdfeel.federate([*rows, {"x": [1.0]}], rows, clients=2)


def test_a_table_becomes_examples_of_which_a_fifth_are_tests(tmp_path: Path) -> None:
    data = table(tmp_path / "t.csv", f"rooms,size,price\n{ROWS}")
    assert (len(data.train), len(data.test), data.shape, data.task) == (8, 2, (2,), "regression")
    both = [*data.train.x[:, 0].tolist(), *data.test.x[:, 0].tolist()]
    assert sorted(both) == list(range(10))
    assert data.train.y.tolist() == pytest.approx([1.5 * n for n in data.train.x[:, 0].tolist()])
    words = table(tmp_path / "t.csv", "rooms,price\n" + "1,low\n2,high\n" * 5)
    assert set(words.train.y.tolist()) == {0, 1}
    assert (words.classes, words.shape) == (2, (1,))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"rooms,size,price\n1,red,2\n{ROWS}", "line 2, column size: 'red' is not a finite"),
        (f"rooms,size,price\n{ROWS}1,,2\n", "line 12, column size: the cell is empty"),
        (f"rooms,size,price\n{ROWS}1,2\n", "line 12: 2 cells, but 3 columns"),
        ("rooms,price\n1,2\n", "has 1 rows"),
    ],
)
def test_a_mistake_is_named_by_line_and_column(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        table(tmp_path / "t.csv", text)


def parquet(path: Path, **columns: Any) -> Path:
    import pyarrow
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(columns), path)
    return path


USERS = [f"u{n % 3}" for n in range(30)]
NUMBERS = [float(n) for n in range(30)]
LABELS = [("low", "high")[n % 2] for n in range(30)]


def test_parquet_and_csv_of_the_same_table_are_the_same_data(tmp_path: Path) -> None:
    other = parquet(tmp_path / "t.parquet", user=USERS, a=NUMBERS, b=[1] * 30, label=LABELS)
    lines = [f"{u},{a},1,{y}" for u, a, y in zip(USERS, NUMBERS, LABELS, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["user,a,b,label", *lines]))
    one, two = (
        read(path, "data.user=user", "data.partition=users") for path in (tmp_path / "t.csv", other)
    )
    for left, right in ((one.train, two.train), (one.test, two.test)):
        assert torch.equal(left.x, right.x)
        assert torch.equal(left.y, right.y)
    assert [part.tolist() for part in one.parts] == [part.tolist() for part in two.parts]
    assert one.shape == (2,)


def test_rows_of_tokens_in_a_parquet_file_stay_whole_numbers(tmp_path: Path) -> None:
    rows = [[n, n + 1, n + 2] for n in range(10)]
    data = read(parquet(tmp_path / "t.parquet", input_ids=rows, label=[0, 1] * 5))
    assert (data.train.x.dtype, data.shape, data.classes) == (torch.int64, (3,), 2)
    tokens = read(parquet(tmp_path / "t.parquet", input_ids=rows), "data.task=language")
    assert torch.equal(tokens.train.x[:, 1:], tokens.train.y[:, :-1])


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"x": [1.0, None] * 5, "y": [1] * 10}, "row 1, column x: the cell is empty"),
        ({"x": [1.0, float("inf")] * 5, "y": [1] * 10}, "row 1, column x: inf is not a finite"),
        ({"x": [[1], [1, 2]] * 5, "y": [1] * 10}, "row 1, column x: 2 values, but 1 in the first"),
        ({"x": ["a"] * 10, "y": [1] * 10}, "row 0, column x: 'a' is not a finite number"),
        ({"a": [1] * 10, "b": [1] * 10}, "which column is the target.*a, b"),
    ],
)
def test_a_parquet_file_that_cannot_be_used_is_told_by_row_and_column(
    tmp_path: Path, columns: dict[str, Any], words: str
) -> None:
    with pytest.raises((DataError, InputError), match=words):
        read(parquet(tmp_path / "t.parquet", **columns))


def test_a_file_that_only_says_it_is_parquet_is_told(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"t\.parquet is not a Parquet file"):
        read(tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"cannot read .*none\.parquet"):
        read(tmp_path / "none.parquet")


def test_a_folder_of_tables_has_its_own_test_files_and_its_files_may_be_the_users(
    tmp_path: Path,
) -> None:
    for side, files in (("train", ("ann", "bob")), ("test", ("ann", "bob"))):
        for n, name in enumerate(files):
            rows = [n] * (4 if side == "train" else 2)
            parquet(tmp_path / side / f"{name}.parquet", x=rows, y=[float(n)] * len(rows))
    data = read(tmp_path)
    assert (len(data.train), len(data.test)) == (8, 4)
    for each in ("train", "test"):
        (tmp_path / each / "notes.txt").write_text("not a table")
    with pytest.raises(InputError, match="no column 'train/ann'"):
        read(tmp_path, "data.user=train/ann")


def test_every_file_of_a_folder_may_be_a_user(tmp_path: Path) -> None:
    for n, name in enumerate(("bob", "ann", "eve")):
        (tmp_path / f"{name}.csv").write_text("x,y\n" + f"{n},{n}\n" * (5 + 5 * n))
    data = read(tmp_path, "data.user=file", "data.partition=users", "data.task=regression")
    assert [len(part) for part in data.parts] == [8, 4, 12]  # ann, bob, eve
    assert [set(data.train.y[part.tolist()].tolist()) for part in data.parts] == [{1}, {0}, {2}]
    assert data.tests is not None
    assert [data.test.y[torch.from_numpy(part)].tolist() for part in data.tests] == [
        [1, 1],
        [0],
        [2, 2, 2],
    ]


def test_the_texts_of_a_target_have_the_same_numbers_in_all_files(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("x,label\n1,cat\n2,dog\n3,ant\n")
    (tmp_path / "test.csv").write_text("x,label\n2,dog\n")
    data = read(tmp_path)
    assert data.train.y.tolist() == [1, 2, 0]
    assert data.test.y.tolist() == [2]


@given(st.lists(st.sampled_from("abcde"), min_size=5, max_size=60))
def test_a_fifth_of_everyones_rows_is_held_out_and_nobody_is_left_without(
    users: list[str],
) -> None:
    train, test = held_out(len(users), users)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(len(users)))
    for user in set(users):
        mine = [n for n, each in enumerate(users) if each == user]
        assert len(set(mine) & set(test.tolist())) == len(mine) // 5
        assert set(mine) & set(train.tolist())


@given(st.lists(st.one_of(st.integers(-20, 20), st.sampled_from("xyz")), min_size=1, max_size=40))
def test_every_value_is_a_client_in_the_order_of_numbers_then_of_texts(values: list[Any]) -> None:
    names, parts = of_values(values)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(values)))
    for name, part in zip(names, parts, strict=True):
        assert {str(values[row]) for row in part.tolist()} == {name}
    numbers = [int(name) for name in names if name.lstrip("-").isdecimal()]
    assert numbers == sorted(numbers)
    assert of_values([values[row] for row in np.concatenate(parts)])[0] == names


def test_a_user_of_test_examples_alone_is_told() -> None:
    both = sdfeel.federate
    rows = [{"who": "a", "x": 1.0, "y": 0}, {"who": "b", "x": 2.0, "y": 1}]
    data = both(rows, rows[1:], partition="users", user="who")
    assert data.tests is not None
    assert [len(own) for own in data.tests] == [0, 1]
    with pytest.raises(InputError, match="test examples are of 'b', who has no training"):
        both(rows[:1], rows[1:], partition="users", user="who")
    with pytest.raises(InputError, match=r"no column is named: set data\.user"):
        both(rows, rows, partition="users")
    with pytest.raises(InputError, match="how many clients share the data"):
        both(rows, rows)
    with pytest.raises(InputError, match="no column 'who': their examples have no named columns"):
        both(([[0.0]], [0]), ([[0.0]], [0]), partition="users", user="who")


@pytest.mark.parametrize("name", ["digits", "own.npz"])
def test_data_without_columns_have_no_users(tmp_path: Path, name: str) -> None:
    if name == "own.npz":
        name = str(tmp_path / name)
        x, y = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
        np.savez(name, x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(InputError, match=r"data\.user names the column 'who', but .* has no named"):
        read(Path(name), "data.user=who")


def test_a_partition_of_ones_own_cannot_name_rows_that_are_not_there() -> None:
    data = (torch.zeros(4, 1), [0, 1, 0, 1])

    def parts(labels: Any, clients: int, rng: Any) -> list[list[int]]:
        return [[0], [1, stray]]

    for stray in (4, -1):
        with pytest.raises(InputError, match=rf"gave client 1 row {stray}, but rows are numbered"):
            sdfeel.federate(data, data, 2, parts)


def pictures(root: Path, *places: str, size: tuple[int, int] = (6, 4)) -> Path:
    for n, place in enumerate(places):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((size[1], size[0], 3), 10 * n, np.uint8)).save(root / place)
    return root


def test_a_folder_of_pictures_has_a_folder_for_each_class(tmp_path: Path) -> None:
    pictures(tmp_path, *(f"{kind}/{n}.png" for n in range(5) for kind in ("dog", "cat")))
    (tmp_path / "cat" / "notes.txt").write_text("no picture")
    data = read(tmp_path)
    assert (len(data.train), len(data.test), data.shape, data.classes) == (8, 2, (3, 4, 6), 2)
    assert sorted(data.train.x[:, 0, 0, 0].mul(255).round().tolist())[0] in (0, 10, 20)
    brought = read(tmp_path, "data.pixels=5")
    assert brought.shape == (3, 5, 5)
    lazy = read(tmp_path, "data.lazy=true")
    assert lazy.train.reads_anew
    assert torch.equal(lazy.train.x, data.train.x)
    assert torch.equal(lazy.train.y, data.train.y)


def test_pictures_may_be_divided_by_users_and_into_train_and_test(tmp_path: Path) -> None:
    for side in ("train", "test"):
        for user, count in (("u10", 3), ("u2", 2)):
            names = [f"{side}/{user}/{('cat', 'dog')[n % 2]}/{n}.png" for n in range(count)]
            pictures(tmp_path, *names)
    data = read(tmp_path, "data.user=folder", "data.partition=users")
    assert [len(part) for part in data.parts] == [3, 2]
    assert data.tests is not None
    assert [len(part) for part in data.tests] == [3, 2]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda root: pictures(root, "a.png"), "a.png is not deep enough"),
        (lambda root: (root / "a.txt").write_text("no"), "neither tables nor pictures"),
        (lambda root: pictures(root, "train/a/0.png"), "files called train, but none called test"),
        (
            lambda root: (pictures(root, "a/0.png"), (root / "t.csv").write_text("a,y\n1,1\n")),
            "both tables and pictures",
        ),
        (
            lambda root: (
                pictures(root, *(f"a/{n}.png" for n in range(9))),
                pictures(root, "b/9.png", size=(7, 7)),
            ),
            r"b/9.png is 7 x 7 with colours, and .* 6 x 4 with colours.*data\.pixels",
        ),
        (
            lambda root: [
                (pictures(root, f"a/{n}.png"), (root / f"a/{n}.png").write_bytes(b"no"))
                for n in range(9)
            ],
            "is not a picture that can be read",
        ),
    ],
)
def test_a_folder_that_cannot_be_used_is_told_in_a_sentence(
    tmp_path: Path, make: Callable[[Path], Any], words: str
) -> None:
    make(tmp_path)
    with pytest.raises(DataError, match=words):
        read(tmp_path)


def last(run: sdfeel.Run) -> Evaluated:
    return [event for event in run if isinstance(event, Evaluated)][-1]


X = torch.randn(60, 3, generator=torch.Generator().manual_seed(5))
PARTS = [(X[n : n + 10], (X[n : n + 10].sum(1) > 0).long()) for n in range(0, 60, 10)]
ASKED = {
    "model": "logistic",
    "training": {"iterations": 10, "engine": "loop"},
    "network": {"servers": 2},
    "evaluation": {"every": 100, "per_cluster": ["accuracy", "loss"]},
}


def measured(data: Any, **evaluation: Any) -> tuple[Evaluated, dict[str, torch.Tensor]]:
    whole = {**ASKED, "data": data, "evaluation": {**ASKED["evaluation"], **evaluation}}  # type: ignore[dict-item]
    run = sdfeel.Run(whole)
    return last(run), dict(run.module.state_dict())


def accuracy(model: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> float:
    weight, bias = model.values()
    return float(((x @ weight.T + bias).argmax(1) == y).double().mean())


def test_metrics_per_client_are_measured_on_test_examples_of_their_own() -> None:
    own = sdfeel.gather(PARTS[:4], tests=PARTS[2:])
    found, model = measured(own, per_client=["accuracy"])
    each = [accuracy(model, *part) for part in PARTS[2:]]
    assert found.metrics["accuracy per client"] == pytest.approx(np.mean(each))
    assert found.metrics["accuracy per client: worst 10 %"] == pytest.approx(min(each))
    assert found.accuracy == pytest.approx(np.mean(each))  # all have as many
    trained, same = measured(own, per_client=["accuracy"], per_client_on="train")
    each = [accuracy(same, *part) for part in PARTS[:4]]
    assert trained.metrics["accuracy per client"] == pytest.approx(np.mean(each))
    few, _ = measured(own, per_client=["accuracy"], test_examples=30)
    assert set(few.metrics) == set(found.metrics)


def test_metrics_per_cluster_are_measured_on_test_examples_of_each_server() -> None:
    found, model = measured(sdfeel.gather(PARTS[:4], cluster_tests=PARTS[4:]))
    each = [accuracy(model, *part) for part in PARTS[4:]]
    assert found.metrics["accuracy per cluster"] == pytest.approx(np.mean(each))
    assert found.metrics["accuracy per cluster: worst 10 %"] == pytest.approx(min(each))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"data": sdfeel.gather(PARTS, cluster_tests=PARTS[:3])},
            "of 3 edge servers.* is 2",
        ),
        (
            {
                "data": sdfeel.gather(PARTS, cluster_tests=PARTS[:2]),
                "evaluation": {"per_client": ["loss"]},
            },
            "edge servers have test examples of their own, not clients",
        ),
        (
            {
                "data": sdfeel.gather(PARTS, PARTS[0]),
                "evaluation": {"per_client": ["loss"], "per_client_on": "test"},
            },
            "clients have no test examples of their own",
        ),
    ],
)
def test_tests_that_nobody_has_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        sdfeel.Run({**ASKED, **settings})


def test_gathered_clients_are_refused_in_a_sentence() -> None:
    with pytest.raises(InputError, match="6 clients bring 2 sets of test examples"):
        sdfeel.gather(PARTS, tests=PARTS[:2])
    with pytest.raises(InputError, match="what is the model tested on"):
        sdfeel.gather(PARTS)
    with pytest.raises(InputError, match="what is the model tested on"):
        sdfeel.gather(PARTS, PARTS[0], tests=PARTS)
    with pytest.raises(InputError, match="clients' examples have different shapes"):
        sdfeel.gather([*PARTS, (X[:, :2], X.sum(1))], PARTS[0])


def test_users_train_from_a_file_and_resume_to_the_same_bits(tmp_path: Path) -> None:
    lines = [f"u{n % 5},{n % 7},{n % 11},{n % 2}" for n in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["who,a,b,label", *lines]))
    (tmp_path / "e.toml").write_text(
        'data = { name = "t.csv", user = "who", partition = "users" }\nmodel = "logistic"\n'
        'network = { servers = 2 }\ntraining = { iterations = 20, engine = "loop" }\n'
        'evaluation = { per_client = ["accuracy"], per_cluster = ["loss"] }\n'
    )
    experiment = load(tmp_path / "e.toml")
    ready = prepare(experiment)
    assert ready.experiment.network.clients == len(ready.data.parts) == 5
    whole = list(sdfeel.Run(experiment, out=tmp_path / "whole"))
    stopped = sdfeel.Run(experiment, out=tmp_path / "two")
    for _ in range(5):
        next(stopped)
    stopped.close()
    again = list(sdfeel.resume(tmp_path / "two"))
    assert isinstance(whole[-1], Finished)
    assert isinstance(again[-1], Finished)
    assert again[-1].model_sha256 == whole[-1].model_sha256
    assert [e.metrics for e in again if isinstance(e, Evaluated)][-1] == [
        e.metrics for e in whole if isinstance(e, Evaluated)
    ][-1]


def test_a_data_set_may_say_whose_its_examples_are() -> None:
    one = sdfeel.federate(([[0.0], [1.0]], [0, 1]), ([[0.0]], [0]), 2)
    data = Dataset("mine", one.train, one.test, 2, ["b", "a"], ["a"])
    split = by_users(data)
    assert [part.tolist() for part in split.parts] == [[1], [0]]
    assert split.tests is not None
    assert [part.tolist() for part in split.tests] == [[0], []]
