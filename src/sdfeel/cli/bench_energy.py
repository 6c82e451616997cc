"""The command that measures the energy of training, where the machine reports it."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from sdfeel.cli.common import AsJson, ExperimentFile, Settings, people, print_json, results
from sdfeel.cli.lazy import later
from sdfeel.report.units import count, joules

with later():
    from sdfeel.bench import energy as bench_energy
    from sdfeel.experiment import loading


def energy(
    experiment: ExperimentFile = None,
    settings: Settings = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to train, and to idle.")] = 10.0,
    as_json: AsJson = False,
) -> None:
    """Compare the joules of a local step by the power model and by the processor's counters.

    Counters (RAPL) are shown by most x86 machines, often to root alone, and seldom by virtual ones.
    They count the whole processor: let nothing else run. Without them, energy stays modelled.

    Example:

      sudo sdfeel bench energy my.toml --seconds 30
    """
    base = loading.load(experiment, settings or ())
    meter = bench_energy.Meter.found()
    with people.status("idling and training"):
        found = bench_energy.measured(base, seconds, meter)
    if as_json:
        print_json(dataclasses.asdict(found))
        return
    results.print(f"a step, modelled: {joules(found.modelled)} (devices.computing_watts)")
    if found.measured is None:
        results.print(f"a step, measured: unknown, because {found.reason}", soft_wrap=True)
        return
    results.print(
        f"a step, measured here: {joules(found.measured)} beyond idling "
        f"({found.idle_watts:.1f} W idle, {found.busy_watts:.1f} W training, "
        f"{count(found.steps)} steps in {found.seconds:.1f} s)",
        soft_wrap=True,
    )
