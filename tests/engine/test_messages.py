"""Codecs and error feedback: exact sizes, no bias, and nothing lost for good."""

import copy
from collections.abc import Callable
from fractions import Fraction
from math import ceil, log2
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sdfeel.core.errors import InputError
from sdfeel.core.mixing import of_rows
from sdfeel.core.seeds import hidden, rng
from sdfeel.engine.base import Task
from sdfeel.engine.messages import (
    CODECS,
    Clip,
    Codec,
    Compress,
    Feedback,
    Noise,
    Packing,
    Plain,
    SecureSum,
    Sender,
    TopK,
    Uniform,
    UpdateStage,
    codec,
)

SIZES = (40, 1, 9, 0, 14)  # of a tensor without elements, too
COUNT = sum(SIZES)


def row(seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(COUNT, generator=draws, dtype=dtype)


def draws(*address: int) -> np.random.Generator:
    return rng(0, "quantise", *address)


def bits_of(x: Tensor) -> bytes:
    return x.numpy().tobytes()


@pytest.mark.parametrize("lossless", [Plain(), Uniform(32), TopK(k=COUNT), TopK(share=1.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_drops_nothing_changes_no_bit_and_costs_as_much(
    lossless: Codec, dtype: torch.dtype
) -> None:
    memory = Feedback(lossless, SIZES, 0)
    for k in range(3):
        x = row(k, dtype)
        x[3], x[4] = -0.0, 1e-40
        assert bits_of(lossless.encode(x, SIZES, draws())) == bits_of(x)
        assert bits_of(memory.send(x, 7, k)) == bits_of(x)
    assert memory.owed == {}
    assert lossless.bits(SIZES) == 32 * COUNT


@pytest.mark.parametrize(
    ("chosen", "bits"),
    [
        (Uniform(8), 8 * 64 + 32 * 5),
        (Uniform(2), 2 * 64 + 32 * 5),
        (Uniform(31), 31 * 64 + 32 * 5),
        (TopK(k=3), 3 * (32 + 6)),
        (TopK(share=0.25), 16 * (32 + 6)),
        (TopK(share=0.001), 1 * (32 + 6)),
    ],
)
def test_sizes_are_the_published_formulas(chosen: Codec, bits: int) -> None:
    assert chosen.bits(SIZES) == bits


@given(count=st.integers(2, 10**7), k=st.integers(1, 100))
def test_a_place_takes_the_logarithm_of_the_count(count: int, k: int) -> None:
    if k < count:
        assert TopK(k=k).bits((count,)) == k * (32 + ceil(log2(count)))


@pytest.mark.parametrize("width", [2, 3, 8, 16])
def test_a_quantised_tensor_lies_on_its_own_grid(width: int) -> None:
    x = row()
    x[:40] *= 100  # the first tensor's scale is nobody else's
    x[50] = 0.0
    found = Uniform(width).encode(x, SIZES, draws())
    levels = 2 ** (width - 1) - 1
    for own, other in zip(
        torch.split_with_sizes(x, SIZES), torch.split_with_sizes(found, SIZES), strict=True
    ):
        if len(own):
            scale = own.abs().max()
            places = other.double() / scale.double() * levels
            torch.testing.assert_close(places, places.round(), rtol=0, atol=0.01)
            assert places.round().unique().numel() <= 2**width
            assert ((own - other).abs() <= scale / levels * (1 + 1e-6)).all()
            assert other[own.abs().argmax()] == own[own.abs().argmax()]
    assert found[50] == 0


def test_stochastic_rounding_is_unbiased() -> None:
    """The mean of many messages is within five standard errors of what was sent."""
    x, times, quantiser = row(), 4000, Uniform(3)
    found = torch.stack([quantiser.encode(x, SIZES, draws(n)) for n in range(times)]).double()
    error = found.std(dim=0) / times**0.5
    assert ((found.mean(dim=0) - x).abs() <= 5 * error + 1e-6).all()
    assert (error > 0).sum() > 50


def test_a_tensor_of_zeros_stays() -> None:
    x = row()
    x[:40] = 0
    assert not Uniform(4).encode(x, SIZES, draws())[:40].any()
    assert not TopK(k=5).encode(torch.zeros(COUNT), SIZES, draws()).any()


def test_rounding_follows_its_address_alone() -> None:
    x, quantiser = row(), Uniform(4)
    assert torch.equal(
        quantiser.encode(x, SIZES, draws(1, 2)), quantiser.encode(x, SIZES, draws(1, 2))
    )
    assert not torch.equal(
        quantiser.encode(x, SIZES, draws(1, 2)), quantiser.encode(x, SIZES, draws(2, 1))
    )
    one, other = Feedback(quantiser, SIZES, 0), Feedback(quantiser, SIZES, 0, "quantise across")
    assert not torch.equal(one.send(x, 1, 0), other.send(x, 1, 0))


def test_the_largest_entries_are_sent_and_the_first_of_equals() -> None:
    x = torch.tensor([1.0, -3.0, 2.0, -2.0, 2.0, 0.0])
    kept = TopK(k=3).encode(x, (6,), draws())
    assert kept.tolist() == [0.0, -3.0, 2.0, -2.0, 0.0, 0.0]


@given(
    values=st.lists(st.integers(-50, 50), min_size=1, max_size=30),
    k=st.integers(1, 30),
)
def test_top_k_keeps_k_entries_none_smaller_than_a_dropped_one(values: list[int], k: int) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    found = TopK(k=k).encode(x, (len(x),), draws())
    kept = found != 0
    assert torch.equal(found[kept], x[kept])
    assert int(kept.sum()) == min(k, int((x != 0).sum()))
    if kept.any() and not kept.all():
        assert x[kept].abs().min() >= x[~kept].abs().max()


@given(
    name=st.sampled_from(["uniform", "top-k"]),
    rounds=st.lists(
        st.lists(st.integers(-(2**12), 2**12), min_size=6, max_size=6), min_size=1, max_size=8
    ),
)
def test_what_arrived_and_what_is_owed_is_what_was_sent_exactly(
    name: str, rounds: list[list[int]]
) -> None:
    memory = Feedback(codec(name, **{"top-k": {"k": 2}, "uniform": {"width": 4}}[name]), (4, 2), 0)
    arrived = [Fraction(0)] * 6
    for k, values in enumerate(rounds):
        sent = memory.send(torch.tensor(values, dtype=torch.float32) / 1024, 3, k)
        arrived = [
            total + Fraction(each) for total, each in zip(arrived, sent.tolist(), strict=True)
        ]
    owed = memory.owed.get(3, torch.zeros(6)).tolist()
    meant = [Fraction(sum(column), 1024) for column in zip(*rounds, strict=True)]
    assert [total + Fraction(each) for total, each in zip(arrived, owed, strict=True)] == meant


def test_with_top_one_every_entry_arrives_in_the_end() -> None:
    memory, x = Feedback(TopK(k=1), (4,), 0), torch.tensor([4.0, 3.0, 2.0, 1.0])
    nothing = torch.zeros(4)
    arrived = [memory.send(x if k == 0 else nothing, 0, k) for k in range(5)]
    assert torch.equal(sum(arrived, nothing), x)
    assert not arrived[4].any()
    assert memory.owed == {}


def test_senders_have_debts_of_their_own_which_can_be_saved() -> None:
    memory = Feedback(Uniform(4), SIZES, 9)
    for sender in (1, 2):
        memory.send(row(sender), sender, 0)
    restored = Feedback(Uniform(4), SIZES, 9, owed=copy.deepcopy(memory.owed))
    assert torch.equal(memory.send(row(5), 1, 1), restored.send(row(5), 1, 1))
    assert torch.equal(memory.owed[1], restored.owed[1])
    assert not torch.equal(memory.owed[1], memory.owed[2])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("topk", {}, "unknown compression 'topk': did you mean 'top-k'"),
        ("uniform", {"width": 1}, "width must be 2 to 32 bits, got 1"),
        ("uniform", {"bits": 8}, "compression uniform does not accept its options: .*'bits'"),
        ("top-k", {"share": 0}, "share of entries must be above 0 and at most 1"),
        ("top-k", {"k": -1}, "k must be at least 0, got -1"),
    ],
)
def test_a_wrong_choice_is_refused(name: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        codec(name, **options)


def test_every_codec_can_be_had_by_its_name() -> None:
    assert {name: type(codec(name)) for name in CODECS} == CODECS


def envelope(client: int = 3, k: int = 5, seed: int = 1) -> Sender:
    return Sender(seed, client, k)


@given(st.integers(0, 1000), st.floats(1e-3, 1e3))
def test_a_clip_shortens_and_never_turns(seed: int, norm: float) -> None:
    x = row(seed)
    out = Clip(norm)(x, SIZES, envelope())
    length = float(x.double().norm())
    assert float(out.double().norm()) <= norm * (1 + 1e-6)
    torch.testing.assert_close(out * max(1.0, length / norm), x)
    if length <= norm:
        assert out is x


def test_noise_belongs_to_its_client_and_round() -> None:
    x, noise = row(), Noise(0.5)
    found = noise(x, SIZES, envelope())
    own = torch.from_numpy(hidden(1, "privacy", 3, 5).standard_normal(COUNT)) * 0.5
    torch.testing.assert_close((found - x).double(), own, rtol=0, atol=1e-6)
    assert torch.equal(noise(x, SIZES, envelope()), found)
    for other in (envelope(client=4), envelope(k=6), envelope(seed=2)):
        assert not torch.equal(noise(x, SIZES, other), found)


def test_noise_has_its_deviation_and_no_mean() -> None:
    zeros = torch.zeros(200_000, dtype=torch.float64)
    drawn = Noise(0.3)(zeros, (200_000,), envelope())
    assert float(drawn.mean()) == pytest.approx(0, abs=0.004)
    assert float(drawn.std()) == pytest.approx(0.3, rel=0.01)


@pytest.mark.parametrize("chosen", [Uniform(4), TopK(k=5)])
def test_compression_as_a_stage_is_the_codec_with_its_feedback(chosen: Codec) -> None:
    memory, owed = Feedback(chosen, SIZES, 1), dict[int, Tensor]()
    for k in range(4):
        x = row(k)
        found = Compress(chosen)(x, SIZES, Sender(1, 3, k, owed))
        assert torch.equal(found, memory.send(x, 3, k))
    assert owed.keys() == memory.owed.keys() == {3}
    assert torch.equal(owed[3], memory.owed[3])


def test_a_packing_applies_its_stages_in_order_and_counts_their_bits() -> None:
    stages = (Clip(1.0), Noise(0.01), Compress(TopK(k=5)))
    packing, owed = Packing(SIZES, 1, stages), dict[int, Tensor]()
    start, trained = row(1), row(2)
    found = packing.upload(owed, Task(3, start, 1, 0), trained, 5)
    x = Noise(0.01)(Clip(1.0)(trained - start, SIZES, envelope()), SIZES, envelope())
    assert torch.equal(found, TopK(k=5).encode(x, SIZES, draws()))
    torch.testing.assert_close(found.double() + owed[3], x.double())
    assert packing.bits(SIZES) == TopK(k=5).bits(SIZES)
    assert Packing(SIZES, 1, (Clip(1.0), Noise(0.01))).bits(SIZES) == 32 * COUNT
    assert packing.readable


class Masked:
    """Readable only in sums."""

    readable: ClassVar[bool] = False

    def __call__(self, x: Tensor, sizes: tuple[int, ...], sender: Sender) -> Tensor:
        return x

    def bits(self, sizes: tuple[int, ...], before: int) -> int:
        return before + 256


@pytest.mark.parametrize(
    ("stages", "sentence"),
    [
        ((Noise(),), "noise protects nobody without a clip before it"),
        ((Noise(), Clip()), "noise protects nobody without a clip before it"),
        ((Compress(TopK()), Clip()), "clip and noise must come before compression"),
        ((Clip(), Compress(TopK()), Noise()), "clip and noise must come before compression"),
        ((Masked(), Compress(TopK())), "Masked must be the last stage"),
        ((Compress(TopK()), SecureSum((1.0,), 2)), "compressed messages cannot be added"),
    ],
)
def test_stages_that_cannot_follow_one_another_are_refused(
    stages: tuple[UpdateStage, ...], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        Packing(SIZES, 0, stages)


@given(st.integers(0, 10**6), st.integers(2, 9))
def test_a_secure_sum_is_the_weighted_sum_up_to_its_steps(seed: int, clients: int) -> None:
    """And the integers are those of the protocol: modulo 2^32 they say the same."""
    drawn = np.random.default_rng(seed)
    samples = drawn.integers(1, 50, clients)
    stage = SecureSum(tuple((samples / samples.sum()).tolist()), clients)
    present = list(range(clients - 1))  # one did not take part
    weights = {n: float(samples[n] / samples[present].sum()) for n in present}
    up = of_rows({0: weights}, "client-server")
    rows = {n: torch.from_numpy(drawn.normal(size=6).astype(np.float32)) for n in present}
    sent = {n: stage(row, (6,), Sender(0, n, 0)) for n, row in rows.items()}
    total = torch.stack(list(sent.values())).sum(dim=0)
    found = stage.opened(up, 0, total)
    exact = torch.stack([w * rows[n].double() for n, w in weights.items()]).sum(dim=0)
    most = clients * 2.0**-24 * samples.sum() / samples[present].sum()
    assert float((found - exact).abs().max()) <= most
    wrapped = np.zeros(6, dtype=np.uint32)
    for each in sent.values():
        wrapped += each.numpy().astype(np.int64).astype(np.uint32)
    assert wrapped.view(np.int32).tolist() == total.tolist()


def test_a_mask_at_the_end_leaves_only_sums_to_read() -> None:
    packing = Packing(SIZES, 0, (Clip(), Masked()))
    assert not packing.readable
    assert packing.bits(SIZES) == 32 * COUNT + 256


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Clip(0.0), "a clip's norm must be above 0, got 0"),
        (lambda: Noise(-1.0), "noise must have a deviation above 0, got -1"),
    ],
)
def test_impossible_stages_are_refused(make: Callable[[], UpdateStage], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make()
