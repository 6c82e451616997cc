"""What a run would take with other periods or links, by the planner, next to what it took."""

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from threading import Lock
from typing import TYPE_CHECKING, Any

from sdfeel.dashboard.log_files import NotHere
from sdfeel.dashboard.trust import check_whole
from sdfeel.dashboard.views.run import flat, read_experiment
from sdfeel.dashboard.views.run_list import Catalogue
from sdfeel.report.history import History, default_target
from sdfeel.report.lines import ASIDE
from sdfeel.report.units import amount, duration, goal, joules

if TYPE_CHECKING:
    from sdfeel.planning.forecast import Changes, Forecast, Forecaster, Reached

KEPT = 2  # experiments that are kept built: their data may be large
FRESH = 10.0  # seconds for which other runs are not looked at again
OTHERS = 8  # runs to learn from: they differ only in knobs
ASIDE_TOO = ("iterations", "engine", "workers", "target_accuracy", "max_seconds")
LABELS = {
    "latency.client_server_mbps": "clients to servers",
    "latency.server_server_mbps": "between servers",
    "latency.server_cloud_mbps": "servers to the cloud",
    "latency.client_cloud_mbps": "clients to the cloud",
}


@dataclass
class KeptForecaster:
    """A built experiment, and what other runs say about it."""

    forecaster: "Forecaster"
    looked: float = float("-inf")
    reached: "list[Reached] | None" = None


class Forecasts:
    """Answers what-if questions, one at a time."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._lock = Lock()
        self._kept: OrderedDict[str, KeptForecaster] = OrderedDict()

    def of(self, name: str, changes: "Changes") -> dict[str, Any]:
        """Knobs, and rows of what the run took, would take as it is, and would take changed."""
        values = read_experiment(self.catalogue.root, name)
        check_whole(values, self.catalogue.root.path)
        history = History.of(name, self.catalogue.log(name).events())
        target = default_target([history])
        with self._lock:
            kept = self._built(values)
            reached = self._reached(kept, values, name, target)
            as_is = kept.forecaster.forecast({}, reached)
            changed = kept.forecaster.forecast(changes, reached)
            knobs = kept.forecaster.knobs.values()
        return {
            "knobs": [
                {
                    "key": knob.key,
                    "label": LABELS.get(knob.key, knob.key.partition(".")[2]),
                    "unit": "" if knob.whole else "Mbit/s",
                    "value": knob.value,
                    "choices": knob.choices,
                }
                for knob in knobs
            ],
            "rows": _rows(history, target, as_is, changed),
            "notes": _notes(as_is, target, len(reached), history),
        }

    def _built(self, values: dict[str, Any]) -> KeptForecaster:
        # Imported here, not above, so that the page is up before torch is loaded.
        from sdfeel.experiment.loading import checked
        from sdfeel.planning.forecast import Forecaster

        key = json.dumps(values, sort_keys=True, default=str)
        if key not in self._kept:
            self._kept[key] = KeptForecaster(Forecaster(checked(values)))
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)[1].forecaster.close()
        self._kept.move_to_end(key)
        return self._kept[key]

    def _reached(
        self, kept: KeptForecaster, values: dict[str, Any], name: str, target: float | None
    ) -> "list[Reached]":
        """After how many iterations this run and similar ones reached the target."""
        if target is None:
            return []
        if kept.reached is None or time.monotonic() - kept.looked > FRESH:
            knobs = kept.forecaster.knobs
            like = _aside(flat(values), knobs)
            plain = _aside(self.catalogue.keys()[name], knobs)
            others = [
                other
                for other, keys in self.catalogue.keys().items()
                if other != name and _aside(keys, knobs) == plain
            ]
            kept.reached = []
            for each in [name, *others[:OTHERS]]:
                own = flat(read_experiment(self.catalogue.root, each))
                there = self._there(each, target)
                if there is not None and _aside(own, knobs) == like:
                    kept.reached.append(({key: own[key] for key in knobs if key in own}, there))
            kept.looked = time.monotonic()
        return kept.reached

    def _there(self, name: str, target: float) -> int | None:
        try:
            found = History.of(name, self.catalogue.log(name).events()).reach(target)
        except NotHere:
            return None
        return found.iterations if found is not None and found.iterations > 0 else None


def _aside(keys: Mapping[str, Any], knobs: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that make two experiments different, without the knobs."""
    left = {*knobs, *(f"training.{key}" for key in ASIDE_TOO)}
    return {k: v for k, v in keys.items() if k not in left and k.partition(".")[0] not in ASIDE}


Shown = Callable[[float | None], str]


def _rows(
    history: History, target: float | None, as_is: "Forecast", changed: "Forecast"
) -> list[dict[str, Any]]:
    """As texts: the run, the prediction for it, the prediction with changes, and their ratio."""
    lengths = [sum(each.phases.values()) for each in history.rounds]
    there = None if target is None else history.reach(target)
    done = history.finished
    energy = None if done is None or not history.energy_known else done.joules
    known: list[tuple[str, Shown, float | None, Any, Any]] = [
        ("time per round", duration, fmean(lengths) if lengths else None,
         as_is.round_seconds, changed.round_seconds),
        (f"time of {changed.iterations:,} iterations", duration, done.seconds if done else None,
         as_is.seconds, changed.seconds),
        ("data moved", amount, done.bytes if done else None, as_is.bytes, changed.bytes),
        ("modelled energy", joules, energy, as_is.joules, changed.joules),
    ]  # fmt: skip
    rows = [
        {
            "name": what,
            "cells": [show(took), show(before), show(after)],
            "ratio": after / before if before else None,
        }
        for what, show, took, before, after in known
    ]
    if target is not None and as_is.to_target is not None and changed.to_target is not None:
        cells = [duration(there.seconds if there else None), *map(_span, (as_is, changed))]
        before, after = as_is.to_target, changed.to_target
        sure = before[0] == before[1] and after[0] == after[1]
        ratio = after[0] / before[0] if sure and before[0] else None
        rows.insert(1, {"name": f"time to {goal(target)}", "cells": cells, "ratio": ratio})
    return rows


def _span(found: "Forecast") -> str:
    assert found.to_target is not None
    least, most = map(duration, found.to_target)
    return least if least == most else f"{least} to {most}"


def _notes(found: "Forecast", target: float | None, runs: int, history: History) -> list[str]:
    notes = [
        "Times, data and energy are the simulator's own prices, with all servers and links up."
    ]
    if history.clock != "virtual":
        notes.append("This run's times are real ones; the predicted ones are virtual.")
    if target is None or not runs:
        notes.append("How long a target takes cannot be predicted: this run has not reached one.")
    elif found.to_target is None:
        notes.append("How long a target takes is predicted for plain SGD only.")
    elif runs == 1:
        notes.append(
            "Only this run shows how many iterations a target takes, so the times have bounds: "
            "training apart for longer costs no iterations at best, and at worst as many as the "
            "theorem says. Every run that differs only in these settings narrows the bounds."
        )
    else:
        notes.append(
            f"How many iterations a target takes is estimated from {runs} runs that differ "
            f"only in these settings."
        )
    return notes
