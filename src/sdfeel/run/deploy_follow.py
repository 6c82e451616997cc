"""An operator: follows the rounds of a deployed federation, measures, and gathers the model."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sdfeel.core.events import Evaluated, Event, Finished, Round, Warned
from sdfeel.engine.sums import mean
from sdfeel.live.federation import Federation
from sdfeel.live.journal import Tally, started
from sdfeel.live.protocol import Link
from sdfeel.run.build import Prepared
from sdfeel.run.deploy_records import Records
from sdfeel.run.drive import fingerprint


@dataclass
class Follower:
    """Turns what edge servers report into the events of a run. It keeps nothing on disk."""

    ready: Prepared
    federation: Federation
    edges: Mapping[int, Link]
    model: Tensor | None = None  # the newest one measured
    _accuracy: float | None = None

    def __post_init__(self) -> None:
        self.records = Records(self.edges, self.federation.synchronous)
        self._tally = Tally(len(self.edges))

    async def events(self) -> AsyncGenerator[Event, None]:
        """Everything from the first round to the last."""
        for note in self.ready.notes:
            yield Warned(note)
        net = self.federation.net
        why = f"deployed on {len(net.servers)} servers and {len(net.samples)} clients"
        yield started(self.federation, self.ready.engine.name, why)
        initial = self.federation.initial.repeat(len(self.edges), 1)
        yield self._measured(0, 0, 0.0, initial)
        number, last = 0, None
        async for last in self._rounds():
            number = last.number
            yield last
            if self._due(number):
                models = await self._models(number)
                if models is None:
                    yield Warned(f"the models of round {number} are no longer kept: not measured")
                else:
                    yield self._measured(number, last.iterations, last.seconds, models)
            reason = self._reason(last)
            if reason is not None:
                break
        assert last is not None  # an experiment has at least one iteration
        yield Finished(
            number=number,
            iterations=last.iterations,
            seconds=last.seconds,
            bytes=self._tally.bytes,
            joules=0.0,
            reason=self._reason(last) or "all iterations done",
            model_sha256=fingerprint(self._final()),
        )

    async def stop(self) -> None:
        """Tell all servers that nobody needs them any more."""
        await asyncio.gather(
            *(link.ask("stop", {}, seconds=5.0) for link in self.edges.values()),
            return_exceptions=True,
        )

    def _final(self) -> Tensor:
        assert self.model is not None
        return self.model

    def _due(self, number: int) -> bool:
        return self.records.exhausted() or number % self.federation.measure_every == 0

    def _reason(self, last: Round) -> str | None:
        training = self.ready.experiment.training
        if training.max_seconds is not None and last.seconds >= training.max_seconds:
            return "time is up"
        goal = training.target_accuracy
        if goal is not None and self._accuracy is not None and self._accuracy >= goal:
            return "target accuracy reached"
        return None

    async def _rounds(self) -> AsyncIterator[Round]:
        async for records in self.records.in_order():
            yield self._tally.round(records)

    async def _models(self, number: int) -> Tensor | None:
        """(D, P) all servers' models after a round; out of step, as they are now."""
        in_step = self.federation.synchronous

        async def one(d: int) -> Tensor | None:
            kind, question = ("measured", {"round": number}) if in_step else ("current", {})
            header, body = await self.edges[d].insist(kind, question)
            if body is None:
                return None
            return self.federation.model(body, header["sha256"])

        found = await asyncio.gather(*(one(d) for d in sorted(self.edges)))
        models = [model for model in found if model is not None]
        return torch.stack(models) if len(models) == len(self.edges) else None

    def _measured(self, number: int, iterations: int, seconds: float, models: Tensor) -> Evaluated:
        mass = self.federation.net.mass
        self.model = mean(mass.tolist(), models)
        distances = (models - self.model).double().norm(dim=1).numpy()
        scores = self.ready.engine.evaluate(self.model)
        self._accuracy = scores.accuracy
        return Evaluated(
            number=number,
            iterations=iterations,
            seconds=seconds,
            bytes=self._tally.bytes,
            joules=0.0,
            loss=scores.loss,
            test_loss=scores.test_loss,
            accuracy=scores.accuracy,
            spread=float(np.sqrt(mass @ distances**2)),
            metrics=scores.metrics,
            distances=tuple(distances.tolist()),
        )
