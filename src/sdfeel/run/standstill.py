"""A run makes progress or ends: when one in which no model arrives is given up."""

from dataclasses import dataclass

from sdfeel.core.decide import Decisions
from sdfeel.core.events import Round

PATIENCE = 1000  # rounds of all lanes in which no model reaches a server
PER_LANE = 20  # of them at least, where clients or servers do not wait for one another


@dataclass
class Standstill:
    """How long nobody has made progress.

    Rounds in which everyone was away do not count while somebody is sure to come back.
    """

    decisions: Decisions
    rounds: int = 0  # in a row

    def after(self, done: Round) -> None:
        """Another round is over."""
        outages = self.decisions.outages
        in_vain = any(done.energy.values())  # somebody trained, and was late
        if done.clients:
            self.rounds = 0
        elif in_vain or outages is None or not outages.will_change(done.number, done.seconds):
            self.rounds += 1

    @property
    def reason(self) -> str | None:
        """Why to end, with what to do about it; None if there is hope."""
        if self.rounds < max(PATIENCE, PER_LANE * len(self.decisions.lanes)):
            return None
        deadline = self.decisions.late.seconds
        cause = "whoever is needed is away for good (network.changes)"
        if deadline is not None:
            cause = f"raise latency.deadline_seconds above {deadline:g}"
        return f"no model has reached a server in {self.rounds} rounds: {cause}"
