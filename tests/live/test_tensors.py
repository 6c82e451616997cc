"""Tensors arrive exactly as they left, or not at all."""

import hashlib
import json
import math
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sdfeel.core.errors import InputError
from sdfeel.core.seeds import rng
from sdfeel.live.transport.errors import Refused, Rejected
from sdfeel.live.transport.tensors import Schema, digest, pack, unpack

DTYPES = [np.dtype(name) for name in ("float32", "float64", "float16", "int64", "uint8")]
Tensor = NDArray[Any]


def some() -> dict[str, Tensor]:
    values = rng(1, "values")
    return {
        "weight": values.random((3, 4), dtype=np.float32),
        "bias": values.random(4, dtype=np.float32),
        "steps": np.array(7),
    }


def sent(tensors: dict[str, Tensor]) -> tuple[bytes, str]:
    body = pack(tensors)
    return body, hashlib.sha256(body).hexdigest()


def file(header: object, data: bytes) -> bytes:
    """A safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_tensors_come_back_bit_for_bit() -> None:
    tensors = some()
    body, sha256 = sent(tensors)
    back = unpack(body, Schema.of(tensors), sha256)
    assert back.keys() == tensors.keys()
    assert all(np.array_equal(back[name], tensors[name]) for name in tensors)
    back["bias"][0] = 5  # what was received is ours to change


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=20).filter(lambda name: name != "__metadata__"),
        st.tuples(st.lists(st.integers(0, 4), max_size=3), st.sampled_from(DTYPES)),
        min_size=1,
        max_size=5,
    )
)
def test_every_schema_holds_what_it_describes(
    forms: dict[str, tuple[list[int], np.dtype[Any]]],
) -> None:
    tensors = {name: np.ones(shape, dtype=dtype) for name, (shape, dtype) in forms.items()}
    schema = Schema.of(tensors)
    body, sha256 = sent(tensors)
    assert schema.total_bytes < len(body) <= schema.max_bytes
    assert all(np.array_equal(t, tensors[name]) for name, t in unpack(body, schema, sha256).items())


def test_other_programs_can_read_and_write_it(tmp_path: Path) -> None:
    tensors = some()
    path = tmp_path / "model.safetensors"
    path.write_bytes(pack(tensors))
    assert np.array_equal(safetensors.torch.load_file(path)["bias"].numpy(), tensors["bias"])
    as_torch = {name: torch.from_numpy(array) for name, array in tensors.items()}
    theirs = safetensors.torch.save(as_torch, metadata={"made": "elsewhere"})
    assert np.array_equal(
        unpack(theirs, Schema.of(tensors), digest(theirs))["weight"], tensors["weight"]
    )


def test_columns_of_a_matrix_are_packed_like_any_tensor() -> None:
    matrix = np.arange(12.0).reshape(3, 4)
    column = {"row": matrix.T[1]}
    body, sha256 = sent(column)
    assert np.array_equal(unpack(body, Schema.of(column), sha256)["row"], matrix[:, 1])


def test_nothing_cannot_be_packed() -> None:
    with pytest.raises(InputError, match="at least one tensor"):
        pack({})


def test_a_changed_byte_is_noticed() -> None:
    tensors = some()
    body, sha256 = sent(tensors)
    for place in range(len(body)):
        changed = body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
        with pytest.raises(Rejected, match=r"SHA-256|do not make up"):
            unpack(changed, Schema.of(tensors), sha256)


def test_the_size_is_judged_before_anything_else() -> None:
    schema = Schema.of(some())
    for body in (b"", b"1234567", b"x" * (schema.max_bytes + 1)):
        with pytest.raises(Rejected, match="bytes cannot be the agreed tensors, which need 72 "):
            unpack(body, schema, "not even looked at")
    long = file(b" " * (schema.header_bytes + 1), b"")
    with pytest.raises(Rejected, match="do not make up"):
        unpack(long, schema, digest(long))


WANTED = Schema.of({name: np.zeros(2, np.float32) for name in "ab"})
DATA = bytes(16)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"a": entry("F32", [2], 0, 8), "c": entry("F32", [2], 8, 16)}, "'b' is missing"),
        ({"a": entry("F32", [4], 0, 16)}, "'a' is 4 of float32, but 2 of float32 was agreed"),
        (
            {"a": entry("I32", [2], 0, 8), "b": entry("F32", [2], 8, 16)},
            "'a' is 2 of int32, but 2 of float32 was agreed",
        ),
        (
            {
                "a": entry("F32", [2], 0, 8),
                "b": entry("F32", [2], 8, 16),
                "c": entry("F32", [0], 16, 16),
            },
            "a tensor that was not agreed upon",
        ),
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 0, 8)}, "not safetensors"),
        ({"a": entry("F32", [2**40], 0, 16)}, "not safetensors"),
        ({"a": entry("F32", [2], 0, 2**60), "b": entry("F32", [2], 8, 16)}, "not safetensors"),
        ({"a": entry("F99", [2], 0, 8), "b": entry("F32", [2], 8, 16)}, "not safetensors"),
        ([1, 2], "not safetensors"),
        (b"\xff\xfe", "not safetensors"),
        (b"[" * 300, "not safetensors"),
    ],
)
def test_content_that_was_not_agreed_upon_is_rejected(header: object, why: str) -> None:
    body = file(header, DATA)
    with pytest.raises(Rejected, match=why):
        unpack(body, WANTED, digest(body))


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("code in a message was run",))


def test_a_message_cannot_run_code() -> None:
    attack = pickle.dumps(Evil())
    for body in (attack, attack + bytes(200), file(attack, DATA)):
        with pytest.raises(Rejected):
            unpack(body, WANTED, digest(body))


@pytest.mark.parametrize("dtype", DTYPES[:3])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_must_be_finite(value: float, dtype: np.dtype[Any]) -> None:
    tensors = {"a": np.ones(1000, dtype=dtype), "b": np.ones(3, dtype=dtype)}
    tensors["b"][1] = value
    body, sha256 = sent(tensors)
    with pytest.raises(Rejected, match="the tensor 'b' has values that are not finite"):
        unpack(body, Schema.of(tensors), sha256)


def test_the_norm_is_that_of_all_numbers_together() -> None:
    tensors = {"a": np.array([3.0]), "b": np.array([[4.0]]), "n": np.array([10**9])}
    body, sha256 = sent(tensors)
    unpack(body, Schema.of(tensors), sha256, max_norm=5.0)
    with pytest.raises(Rejected, match=r"norm of 5 exceeds the bound of 4\.99"):
        unpack(body, Schema.of(tensors), sha256, max_norm=4.99)


def test_a_norm_beyond_all_numbers_is_rejected_even_without_a_bound() -> None:
    tensors = {"a": np.full(4, 1e300)}
    body, sha256 = sent(tensors)
    with pytest.raises(Rejected, match="norm of inf exceeds any bound"):
        unpack(body, Schema.of(tensors), sha256)


def test_large_but_finite_float32_pass_without_a_bound() -> None:
    tensors = {"a": np.full(4, 3e38, np.float32)}
    body, sha256 = sent(tensors)
    assert np.array_equal(unpack(body, Schema.of(tensors), sha256)["a"], tensors["a"])


def test_a_hash_that_is_no_text_is_just_wrong() -> None:
    body, _ = sent(some())
    for sha256 in (None, 5, ["x"]):
        with pytest.raises(Rejected, match="SHA-256"):
            unpack(body, Schema.of(some()), sha256)


def test_a_rejection_is_an_answer_to_the_sender() -> None:
    assert issubclass(Rejected, Refused)
