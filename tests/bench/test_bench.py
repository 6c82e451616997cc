"""Every way is timed on the same work."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from sdfeel.bench import engines, machine_limit, scale
from sdfeel.bench.engines import (
    WAYS,
    WORKS,
    BenchWork,
    check,
    compare,
    find,
    forward_flops,
    plain_evaluation,
    training_flops,
)
from sdfeel.bench.machine_limit import needed_flops, peak
from sdfeel.core.errors import InputError
from sdfeel.engine.base import Training, Workload
from sdfeel.engine.native import build
from sdfeel.engine.native.lower import ModelPlan, lower
from sdfeel.engine.select import choose


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here depends on how well a time was measured, only on what is made of it."""
    monkeypatch.setattr(engines, "AT_LEAST", 0.005)
    monkeypatch.setattr(machine_limit, "TRIES", 2)


SMALL = BenchWork("small", "mlp", (1, 4, 4), clients=3, steps=2, batch=5, examples=10)
LOOK = replace(SMALL, steps=0, examples=200)


def test_every_way_is_timed_beside_the_loop() -> None:
    found = compare(SMALL, ["naive", "centralised", "lean", "loop", "parallel"], repeats=1)
    assert [speed.way for speed in found] == [
        "naive",
        "centralised",
        "lean",
        "loop",
        "parallel",
        "limit",
    ]
    speeds = {speed.way: speed for speed in found}
    assert speeds["loop"].of_loop == 1
    assert speeds["limit"].of_needed == 1
    for speed in found:
        assert speed.samples_per_second > 0
        share = speed.samples_per_second / speeds["limit"].samples_per_second
        assert speed.of_needed == pytest.approx(share)
        assert speed.of_peak == pytest.approx(share * SMALL.flops / SMALL.needed)


def test_the_first_turn_only_warms_up() -> None:
    spans = iter([0.6, 0.5, 0.01, 0.02, 0.03, 0.04])  # 0.6 and 0.5: before anything counts
    calls: list[float] = []
    told: list[int] = []

    def way() -> None:
        calls.append(next(spans))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "sustained", lambda each: (each(), calls[-1])[1])
        found = engines.timed({"a": way}, 4, lambda name, turn, all_: told.append(turn))
    assert found == {"a": [0.01, 0.02, 0.03, 0.04]}
    assert told == [0, 1, 2, 3, 4]


def test_native_is_shown_beside_the_peak_of_its_own_instructions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speeds = {"avx2": 1e9, "native": 2e9}
    monkeypatch.setattr(
        machine_limit, "_measured", lambda name: machine_limit.Peak(speeds[name], "a guess")
    )
    monkeypatch.setenv(build.INSTRUCTIONS, "avx2")
    monkeypatch.setattr(engines, "timed", lambda ready, *_: {name: [1.0] for name in ready})
    monkeypatch.setitem(WAYS, "native", lambda work: int)
    loop, native, most = compare(SMALL, ["loop", "native"], repeats=1)
    assert (native.peak, native.instructions, most.peak, loop.peak) == (1e9, "avx2", 1e9, 2e9)
    assert native.of_peak == 2 * loop.of_peak == pytest.approx(SMALL.samples * SMALL.flops / 1e9)
    assert (most.of_needed, most.samples_per_second) == (1, 1e9 / SMALL.needed)


def test_batched_agrees_with_the_loop_on_a_device() -> None:
    found = check(replace(SMALL, device="cpu"))
    assert (found.agrees, found.engine, found.device) == (True, "batched", "cpu")
    assert found.off < 1e-4


def test_a_way_that_only_trains_is_left_out_of_an_evaluation() -> None:
    found = compare(LOOK, list(WAYS), repeats=1)
    assert {"centralised", "lean"}.isdisjoint(speed.way for speed in found)
    with pytest.raises(InputError, match="this way trains"):
        WAYS["lean"](LOOK)


def test_the_plain_evaluation_finds_what_an_engine_finds() -> None:
    work = replace(LOOK, examples=500)
    data, parts = work.data()
    engine, _ = choose("loop", Workload(work.module(), data, parts, data, work.training, seed=0))
    loss, right = plain_evaluation(work)()
    scores = engine.evaluate(engine.initial())
    assert scores.test_loss == pytest.approx(loss, rel=1e-5)
    assert scores.accuracy == pytest.approx(right / len(data))


def test_the_works_are_those_that_are_asked_for() -> None:
    assert find("mnist-cnn").samples == 2500
    assert find("evaluation").samples == 10_000
    assert sum(p.numel() for p in find("cifar-cnn").module().parameters()) == 5_852_170
    for work in WORKS.values():
        x = replace(work, clients=1, examples=2).data()[0].x
        assert work.module().eval()(x).shape == (2, 10)


def test_operations_are_counted_by_hand() -> None:
    # 2 outputs of 3x3 windows over 2x2 places, then 8 to 5: 72 and 40 products.
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 5))
    assert forward_flops(module, (1, 4, 4)) == 2 * (72 + 40)
    assert training_flops(module, (1, 4, 4)) == 2 * (3 * 112 - 72)
    assert torch.is_grad_enabled()


def test_what_is_skipped_is_counted_by_hand() -> None:
    # 72 products, of which a quarter has gradients, and 2 of 3 inputs of 2 x 5 products are kept.
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Dropout2d(0.25), nn.Flatten(), nn.Linear(2, 5)
    )
    plan = lower(module, Training(0.1, 10), (1, 4, 4))
    assert isinstance(plan, ModelPlan)
    assert needed_flops(plan, training=False) == forward_flops(module, (1, 4, 4)) == 2 * (72 + 10)
    kept = 0.75
    first, second = 72 * kept * (1 + 1 / 4), 10 * kept * 3
    assert needed_flops(plan, training=True) == pytest.approx(2 * (first + second))


def test_nothing_is_necessary_that_a_dense_count_leaves_out() -> None:
    for work in WORKS.values():
        assert 0 < work.needed <= work.flops


def test_the_peak_is_measured_once() -> None:
    assert peak() is peak()
    assert peak().flops > 1e9
    assert all(peak(name).flops > 1e9 for name in build.available_sets())


@pytest.mark.parametrize("scheme", ["sd-feel", "async-sd-feel"])
def test_a_point_of_the_curves_is_measured(scheme: str) -> None:
    found = scale.grown(scale.Point(12, 4, 3, scheme))
    assert (found.clients, found.servers, found.rounds, found.scheme) == (12, 4, 3, scheme)
    assert min(found.prepare, found.round, found.megabytes) > 0
