"""Who is worth a pilot run at the beginning of a race."""

from collections.abc import Iterable

from sdfeel.planning.candidates import Candidate, trained
from sdfeel.planning.ranking import Entry, Law


def distinct(entries: Iterable[Entry]) -> list[Entry]:
    """Of those that train the same models, only the one whose iterations cost least."""
    best: dict[Candidate, Entry] = {}
    for entry in entries:
        known = best.setdefault(trained(entry.candidate), entry)
        if entry.pace.seconds < known.pace.seconds:
            best[trained(entry.candidate)] = entry
    return list(best.values())


def shortlist(entries: Iterable[Entry], law: Law) -> list[Entry]:
    """A mixed field: the best by stage 1 for every tau1, at the learning rate that the measured
    curvature suggests and at the next higher ones, and the best of every scheme.

    The bound overrates drift: left alone, it would only ever send the most talkative settings.
    """
    ranked = sorted(entries, key=law.seconds)
    advised = max(ranked, key=law.stride).candidate.learning_rate
    chosen: dict[object, Entry] = {}
    for entry in ranked:
        candidate = entry.candidate
        if candidate.learning_rate >= advised:
            chosen.setdefault((candidate.tau1, candidate.learning_rate > advised), entry)
    for entry in ranked:
        if entry.candidate.scheme not in {e.candidate.scheme for e in chosen.values()}:
            chosen.setdefault(entry.candidate.scheme, entry)
    return list(chosen.values())
