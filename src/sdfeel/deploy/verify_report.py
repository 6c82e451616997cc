"""What `sdfeel deploy verify` found, in sentences and for programs."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Finding:
    """A deviation: the round (None if it is about no single one), the nodes, and a sentence."""

    round: int | None  # from 0
    nodes: tuple[str, ...]
    text: str
    proven: bool = True  # no other node can have caused it

    def sentence(self) -> str:
        return self.text if self.round is None else f"round {self.round + 1}: {self.text}"


@dataclass
class Verification:
    """The outcome of one verification."""

    rounds: int = 0
    signatures: int = 0
    good: Counter[str] = field(default_factory=Counter)  # parts that match what was signed, by kind
    whole: list[int] = field(default_factory=list)  # rounds that were recomputed completely
    findings: list[Finding] = field(default_factory=list)
    unknown: dict[tuple[str, str], list[int]] = field(default_factory=dict)  # whose part, and why
    remarks: list[str] = field(default_factory=list)
    published: bool | None = None  # is the published model the outcome? None: unknown
    published_text: str = ""

    @property
    def verified(self) -> bool:
        return not self.findings and self.published is not False

    @property
    def first(self) -> Finding | None:
        """The deviation in the earliest round; of several, one that is proven."""
        order = sorted(self.findings, key=lambda each: (each.round or 0, not each.proven))
        return order[0] if order else None

    def offenders(self) -> list[str]:
        return sorted({name for each in self.findings if each.proven for name in each.nodes})

    def sentences(self) -> Iterator[str]:
        yield f"{self.signatures:,} signatures about {self.rounds} rounds are good"
        clients, servers = self.good["client"], self.good["server"]
        yield (
            f"{clients} clients' parts and {servers} servers' parts were recomputed, and are as "
            f"signed; {len(self.whole)} of {self.rounds} rounds completely"
        )
        for each in sorted(self.findings, key=lambda each: each.round or 0):
            yield each.sentence()
        for (why, rounds), parts in self._grouped().items():
            yield f"not recomputed, {spans(rounds)}: {', '.join(parts)}: {why}"
        yield from self.remarks
        if self.published_text:
            yield self.published_text
        yield self.verdict()

    def _grouped(self) -> dict[tuple[str, tuple[int, ...]], list[str]]:
        """The nodes whose parts could not be recomputed, by reason and rounds."""
        found: dict[tuple[str, tuple[int, ...]], list[str]] = {}
        for (part, why), rounds in self.unknown.items():
            found.setdefault((why, tuple(rounds)), []).append(part)
        return found

    def verdict(self) -> str:
        first = self.first
        if first is not None:
            who = " and ".join(first.nodes)
            doubtful = (
                "contradict each other first" if len(first.nodes) > 1 else "is in doubt first"
            )
            what = "deviates first" if first.proven else doubtful
            when = "" if first.round is None else f", in round {first.round + 1}"
            return f"NOT VERIFIED: {who} {what}{when}"
        if self.published is False:
            return "NOT VERIFIED: the published model is not what the federation computed"
        if self.unknown or self.published is None:
            return "NO DEVIATION was found, but not everything could be recomputed"
        return "VERIFIED: the published model is what the federation computed"

    def record(self) -> dict[str, Any]:
        """For programs, and for the page."""
        return {
            "verified": self.verified,
            "verdict": self.verdict(),
            "rounds": self.rounds,
            "whole_rounds": len(self.whole),
            "signatures": self.signatures,
            "parts": dict(self.good),
            "published": self.published,
            "offenders": self.offenders(),
            "findings": [
                {
                    "round": None if each.round is None else each.round + 1,
                    "nodes": list(each.nodes),
                    "proven": each.proven,
                    "text": each.sentence(),
                }
                for each in self.findings
            ],
            "unknown": [
                {"node": node, "why": why, "rounds": [k + 1 for k in rounds]}
                for (node, why), rounds in self.unknown.items()
            ],
            "remarks": self.remarks,
        }


def spans(rounds: Iterable[int]) -> str:
    """Round numbers, from 0, as people write them, from 1.

    >>> spans([0, 1, 2, 4])
    'rounds 1 to 3, 5'
    """
    found: list[tuple[int, int]] = []
    numbers = sorted(set(rounds))
    for k in numbers:
        if found and found[-1][1] == k - 1:
            found[-1] = found[-1][0], k
        else:
            found.append((k, k))
    shown = (f"{a + 1}" if a == b else f"{a + 1} to {b + 1}" for a, b in found)
    return f"round{'s' if len(numbers) > 1 else ''} {', '.join(shown)}"
