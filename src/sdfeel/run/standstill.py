"""A run makes progress or ends: when to give up on one in which no model arrives."""

from dataclasses import dataclass

from sdfeel.core.decide import Decisions
from sdfeel.core.events import Round

PATIENCE = 1000  # rounds of all lanes in which no model reaches a server
PER_LANE = 20  # at least so many for each lane, where they do not wait for one another


@dataclass
class Standstill:
    """How long nobody has made progress.

    Rounds in which everyone was away do not count while somebody is sure to come back.
    """

    decisions: Decisions
    rounds: int = 0  # in a row

    def after(self, done: Round) -> None:
        """Count another round."""
        outages = self.decisions.outages
        in_vain = any(done.energy.values())  # somebody trained, and was late
        if done.clients:
            self.rounds = 0
        elif in_vain or outages is None or not outages.will_change(done.number, done.seconds):
            self.rounds += 1

    @property
    def reason(self) -> str | None:
        """Why to end the run, and what to do about it; None while there is hope."""
        if self.rounds < max(PATIENCE, PER_LANE * len(self.decisions.lanes)):
            return None
        deadline = self.decisions.late.seconds
        cause = "a server, link or cloud that is needed is down for good; change network.changes"
        if deadline is not None:
            cause = f"raise latency.deadline_seconds above {deadline:g}"
        return f"no model has reached a server in {self.rounds} rounds: {cause}"
