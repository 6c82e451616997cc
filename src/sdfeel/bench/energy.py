"""Joules that the processor itself counts (RAPL), compared with those of the power model.

A machine shows its counters in /sys/class/powercap, often only to root. They count everything that
the processor does, so the energy of training is what it takes beyond idling for as long. Where
there are none, energy stays modelled.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sdfeel.experiment import build
from sdfeel.experiment.schema import Experiment

POWERCAP = Path("/sys/class/powercap")
PACKAGE = re.compile(r"intel-rapl:\d+")  # AMD's processors have this name, too


@dataclass(frozen=True)
class Meter:
    """The energy counters of all processors; if there are none, `reason` says why."""

    counters: tuple[tuple[Path, int], ...]  # of microjoules, and when each starts again
    reason: str | None = None

    @classmethod
    def found(cls, root: Path = POWERCAP) -> "Meter":
        """The counters that this machine offers."""
        packages = (
            sorted(each for each in root.iterdir() if PACKAGE.fullmatch(each.name))
            if root.is_dir()
            else []
        )
        if not packages:
            return cls((), f"this machine shows no energy counters ({root} has no intel-rapl)")
        counters = []
        for each in packages:
            try:
                _read(each / "energy_uj")
                counters.append((each / "energy_uj", _read(each / "max_energy_range_uj")))
            except (OSError, ValueError):
                path = each / "energy_uj"
                return cls((), f"{path} cannot be read: on most systems, only root may")
        return cls(tuple(counters))

    def read(self) -> list[int]:
        """What each counter says now."""
        return [_read(path) for path, _ in self.counters]

    def joules(self, before: list[int], after: list[int]) -> float:
        """Joules between two readings; in between, no counter may have gone all the way round."""
        turns = [most for _, most in self.counters]
        spent = zip(before, after, turns, strict=True)
        return sum((now - then) % most for then, now, most in spent) / 1e6


def _read(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))


@dataclass(frozen=True)
class Energy:
    """The energy of a local step, by the model and by the processor's own count."""

    steps: int  # that were trained in `seconds`
    seconds: float
    modelled: float  # joules of a step at a modelled device
    measured: float | None  # joules of a step on this machine, beyond idling; None: unknown
    idle_watts: float | None
    busy_watts: float | None
    reason: str | None = None  # why nothing was measured


def measured(
    experiment: Experiment,
    seconds: float,
    meter: Meter,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Energy:
    """Idle for some seconds, train for as many, and compare."""
    ready = build.prepare(experiment)
    try:
        simulation = ready.simulation()
        next(simulation)  # what is made once does not count
        before = meter.read()
        if meter.counters:
            sleep(seconds)
        idle = meter.joules(before, meter.read())
        before, began = meter.read(), clock()
        first = int(simulation.state.taken.sum())
        while clock() - began < seconds:
            next(simulation)
        took, busy = clock() - began, meter.joules(before, meter.read())
        steps = int(simulation.state.taken.sum()) - first
    finally:
        ready.engine.close()
    known = bool(meter.counters)
    cost = ready.cost
    return Energy(
        steps=steps,
        seconds=took,
        modelled=float(cost.step_seconds.mean()) * cost.power.computing,
        measured=max(busy - idle * took / seconds, 0.0) / max(steps, 1) if known else None,
        idle_watts=idle / seconds if known else None,
        busy_watts=busy / took if known else None,
        reason=meter.reason,
    )
