"""Splits and assignments that a person wrote down."""

from pathlib import Path

import numpy as np
import pytest

from sdfeel.core.errors import DataError
from sdfeel.data import partition

FORMS = {
    "lists.json": "[[4, 0], [1, 2]]",
    "owners.json": "[0, 1, 1, 1, 0]",
    "pairs.csv": "client,index\n1,2\n0,0\n1,1\n0,4\n",
    "bare.csv": "1,2\n0,0\n\n1, 1\n0,4",
    "column.csv": "\ufeffclient\n0\n1\n1\n1\n0\n",
}


def saved(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", FORMS)
def test_each_form_of_file_says_the_same(name: str, tmp_path: Path) -> None:
    parts = partition.from_file(saved(tmp_path, name, FORMS[name]), 5)
    third = [3] if name in ("owners.json", "column.csv") else []  # these must place everyone
    assert [part.tolist() for part in parts] == [[0, 4], [1, 2, *third]]


def test_split_takes_a_path_for_a_name(tmp_path: Path) -> None:
    path = saved(tmp_path, "lists.json", FORMS["lists.json"])
    labels = np.zeros(5, dtype=np.int64)
    parts = partition.split(labels, 2, np.random.default_rng(), partition=str(path))
    assert [part.tolist() for part in parts] == [[0, 4], [1, 2]]


def test_a_split_for_other_clients_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, "lists.json", FORMS["lists.json"])
    with pytest.raises(
        DataError, match=r"is a split for 2 clients, but there are 3: set clients to 2"
    ):
        partition.split(
            np.zeros(5, dtype=np.int64), 3, np.random.default_rng(), partition=str(path)
        )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "[[0], [1, 5]]", "client 1 lists example 5, but examples are numbered 0 to 4"),
        ("a.json", "[[0, -1]]", "client 0 lists example -1"),
        ("a.json", "[[0, 1], [1]]", r"example 1 is listed twice \(again by client 1\)"),
        ("a.json", "[[0, 0]]", r"example 0 is listed twice \(again by client 0\)"),
        ("a.json", "[[0], []]", "client 1 has no examples"),
        ("a.json", "[]", "is empty: list the examples of at least one client"),
        ("a.json", "[[0], 1]", "must hold one list of lists of whole numbers"),
        ("a.json", "[[0.5]]", "must hold one list of lists of whole numbers"),
        ("a.json", "[[true]]", "must hold one list of lists of whole numbers"),
        ("a.json", "[[9223372036854775808]]", "must hold one list of lists of whole numbers"),
        ("a.json", '{"0": [1]}', "must hold one list of lists of whole numbers"),
        ("a.json", "[[0]", r"is not JSON \(line 1"),
        ("a.json", "[0, 1]", "gives the client of 2 examples, but there are 5: write one number"),
        ("a.json", "[0, 0, 0, 0, -1]", "names client -1, but clients are numbered from 0"),
        ("a.csv", "", "is empty"),
        ("a.csv", "client,index\n", "is empty"),
        ("a.csv", "0,1\n0,x\n", "line 2: expected 2 whole numbers from 0 up, got '0,x'"),
        ("a.csv", "0,1\n0\n", "line 2: expected 2 whole numbers from 0 up, got '0'"),
        ("a.csv", "0,1,2\n", "has 3 columns"),
        ("a.csv", "0,1\n2,3\n2,4\n", "client 1 has no examples"),
        ("a.csv", "0,1\n999999999,2\n", "numbers a group 999999999 but has only 2 rows"),
    ],
)
def test_a_faulty_file_is_refused_with_the_place(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        partition.from_file(saved(tmp_path, name, text), 5)
    assert str(tmp_path / name) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*none\.json: No such file"):
        partition.from_file(tmp_path / "none.json", 5)


def test_bytes_are_not_taken_for_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="is not a text file"):
        partition.from_file(tmp_path / "a.csv", 5)
