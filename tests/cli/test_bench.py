"""`sdfeel bench`: its table, its document and its check of a device, with measurements made up."""

import json
from typing import Any

import pytest

from sdfeel.bench import engines, machine_limit, scale
from sdfeel.bench.engines import BenchWork, DeviceAgreement, EngineSpeed
from sdfeel.bench.guards import GuardTrial
from sdfeel.cli.bench_guards import _cell
from sdfeel.core.errors import InputError
from sdfeel.engine.base import cores
from sdfeel.engine.native import build
from sdfeel.run.provenance import machine
from tests.cli.command import call


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The works that were measured."""
    asked: list[str] = []

    def compare(work: BenchWork, *_: Any) -> list[EngineSpeed]:
        asked.append(work.name)
        if work.name == "lenet":
            raise InputError("that is enough")
        rest = 1234.0, 1.0, 0.25, 0.5, build.asked_instructions(), 2e11
        return [EngineSpeed(work.name, way, *rest) for way in ("loop", "limit")]

    monkeypatch.setattr(engines, "compare", compare)
    monkeypatch.setattr(machine_limit, "peak", lambda: machine_limit.Peak(2e11, "a guess"))
    return asked


def test_the_table_shows_both_shares_of_the_peak(measured: list[str]) -> None:
    outcome = call("bench", "--work", "mlp,cifar-cnn")
    assert outcome.code == 0, outcome.err
    assert measured == ["mlp", "cifar-cnn"]
    header, *rows = outcome.out.splitlines()
    assert header.startswith(f"{machine()['CPU']}, {cores()} cores, has ")
    lines = [line.split() for line in rows]
    assert lines[0] == ["work", "way", "samples/s", "x", "loop", "%", "of", "peak", "%", "needed"]
    assert lines[1] == ["mlp", "loop", "1,234", "1.00", "25.0", "50.0"]
    assert "200 GFLOP/s, the speed of a guess" in " ".join(outcome.err.split())


def test_a_document_that_is_whole_is_json(measured: list[str]) -> None:
    outcome = call("bench", "--work", "mlp,cifar-cnn", "--json")
    found = json.loads(outcome.out)
    assert [(each["work"], each["way"]) for each in found] == [
        ("mlp", "loop"),
        ("mlp", "limit"),
        ("cifar-cnn", "loop"),
        ("cifar-cnn", "limit"),
    ]
    assert found[0]["of_needed"] == 0.5


def test_only_the_instructions_that_were_asked_for_are_measured(
    measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "cpu", lambda: " ".join(sorted(build.AVX512)))
    table = call("bench", "--work", "mlp", "--instructions", "avx2")
    header = table.out.splitlines()[0]
    assert ", has avx2, avx512; native's code: avx2, torch's: " in header
    document = call("bench", "--work", "mlp", "--instructions", "avx2", "--json")
    assert {each["instructions"] for each in json.loads(document.out)} == {"avx2"}
    monkeypatch.setenv(build.INSTRUCTIONS, "avx512")
    assert "native's code: avx512" in call("bench", "--work", "mlp").out.splitlines()[0]


def test_instructions_that_the_cpu_lacks_are_refused_before_anything_is_timed(
    measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "cpu", lambda: " ".join(sorted(build.AVX512 - {"avx512dq"})))
    refused = call("bench", "--instructions", "avx512")
    assert refused.code == 1
    assert (
        "this CPU cannot run code for avx512, because it lacks avx512dq: choose avx2 or native"
        in refused.sentence
    )
    unknown = call("bench", "--instructions", "avx-2")
    assert "unknown instruction set 'avx-2': did you mean 'avx2'?" in unknown.sentence
    assert measured == []


def test_a_document_that_was_cut_short_has_what_was_measured(measured: list[str]) -> None:
    outcome = call("bench", "--work", "mlp,lenet,cifar-cnn", "--json")
    assert outcome.code != 0
    assert measured == ["mlp", "lenet"]
    lines = [line.strip().rstrip(",") for line in outcome.out.splitlines()]
    assert [json.loads(line)["way"] for line in lines if line.startswith("{")] == ["loop", "limit"]


@pytest.mark.parametrize(
    ("engine", "off", "code", "said"),
    [
        ("batched", 2e-6, 0, "mlp on cpu: agrees with the loop (off by 2.0e-06 of a step)"),
        ("batched", 0.5, 1, "mlp on cpu: DIFFERS from the loop (off by 5.0e-01 of a step)"),
        ("parallel", 0.0, 1, "mlp on cpu: cannot be batched: parallel would train it (off by"),
    ],
)
def test_a_device_is_checked(
    engine: str, off: float, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(work: BenchWork) -> DeviceAgreement:
        agrees = engine == "batched" and off < 0.1
        return DeviceAgreement(work.name, work.device, off, engine, agrees)

    monkeypatch.setattr(engines, "check", check)
    outcome = call("bench", "--work", "mlp,evaluation", "--check")
    assert outcome.code == code
    assert " ".join(outcome.out.split()).startswith(said)


def test_growth_is_printed_point_by_point(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[scale.Point] = []

    def measured(point: scale.Point) -> scale.Grown:
        asked.append(point)
        size = point.clients, point.servers, point.rounds, point.scheme
        return scale.Grown(*size, 0.25, 0.0031, 260.0)

    monkeypatch.setattr(scale, "measured", measured)
    options = ("--clients", "50,2000", "--servers", "10", "--rounds", "7")
    outcome = call("bench", "scale", *options)
    assert outcome.code == 0, outcome.err
    assert [(each.clients, each.servers, each.rounds) for each in asked] == [
        (50, 50, 3),
        (2000, 100, 3),
        (100, 10, 3),
        (1000, 10, 7),
        (20, 10, 200),
    ]
    lines = [line.split() for line in outcome.out.splitlines()]
    assert lines[2] == ["sd-feel", "2,000", "100", "3", "0.25", "3.1", "260"]
    assert lines[5][0] == "async-sd-feel"
    document = json.loads(call("bench", "scale", *options, "--json").out)
    assert len(document) == 5
    refused = call("bench", "scale", "--servers", "0")
    assert refused.code == 1
    assert "--servers must be whole numbers of at least 1, got '0'" in refused.sentence


def test_a_cell_of_attacks_has_the_mean_and_the_range_of_its_runs() -> None:
    def run(accuracy: float | None, backdoor: float | None = None) -> GuardTrial:
        return GuardTrial("median", "backdoor", accuracy, backdoor, 1.0, 1.0, None)

    assert _cell([run(0.5), run(0.7), run(0.9)]) == "70.0 % (50.0 to 90.0)"
    assert _cell([run(0.5, 0.25)]) == "50.0 %; 25 %"
    assert _cell([run(0.5, 0.2), run(None)]) == "50.0 %; 20 %, 1 of 2 diverged"
    assert _cell([run(None)]) == "diverged"
