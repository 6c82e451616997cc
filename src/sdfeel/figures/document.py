"""Writes docs/reproduce.md from the kept verdicts: `python -m sdfeel.figures.document`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from sdfeel.figures.catalogue import FIGURES
from sdfeel.figures.figure import Claim, Figure
from sdfeel.figures.judging import load
from sdfeel.figures.settings import PRICES, Scale
from sdfeel.figures.verdicts import ENOUGH

OPPOSITE = {"holds", "does not hold"}


@dataclass(frozen=True)
class Pair:
    """One claim, under one price list, at two scales."""

    figure: str
    claim: str
    prices: str
    dear: str  # the verdict at the more expensive scale
    quick: str
    why: str  # quick scale cannot judge it

    @property
    def same(self) -> bool:
        return self.dear == self.quick

    @property
    def mute(self) -> bool:
        """Quick scale gives numbers and no verdict."""
        return self.quick == "cannot judge"

    @property
    def contradicts(self) -> bool:
        return {self.dear, self.quick} == OPPOSITE

    @property
    def open(self) -> bool:
        """Decided at only one of the scales."""
        return not (self.same or self.mute or self.contradicts)


def pairs(results: Path, scale: Scale) -> Iterator[Pair]:
    """All verdicts that exist both at `scale` and at quick scale."""
    for figure in FIGURES.values():
        dear, quick = load(results, scale, figure.name), load(results, "quick", figure.name)
        if dear is None or quick is None or not figure.data:
            continue
        verdicts = {(each["id"], each["prices"]): each["verdict"] for each in quick["claims"]}
        reasons = {claim.id: claim.beyond_quick for claim in figure.claims}
        for each in dear["claims"]:
            claim, prices = each["id"], each["prices"]
            found = (each["verdict"], verdicts[claim, prices])
            yield Pair(figure.name, claim, prices, *found, reasons[claim])


def table(found: list[Pair], scale: Scale) -> str:
    """What differs between the scales, and why."""
    rows = [f"| figure | claim | {scale} | quick | why |\n", "|---|---|---|---|---|\n"]
    for pair in found:
        if not pair.same:
            claim = f"{pair.claim}, prices {pair.prices}" if pair.prices else pair.claim
            rows.append(f"| {pair.figure} | {claim} | {pair.dear} | {pair.quick} | {pair.why} |\n")
    return "".join(rows)


RESULTS, DOCUMENT = Path("results"), Path("docs/reproduce.md")
HOURS, SEEDS = RESULTS / "cifar10.json", 3  # what tools/cifar10_hours.py counts
SHOWN: tuple[Scale, ...] = ("full", "reduced", "quick")


def document(results: Path) -> str:
    """The whole page."""
    prices = (f"  * **{name}**: {text}.\n" for name, text in PRICES.items())
    parts = [HEAD, *prices, SCALES]
    parts += ["\n## All verdicts\n\n", _overview(results), _agreement(results)]
    told: set[str] = set()
    for figure in FIGURES.values():
        parts.append(_section(figure, results, told))
    parts.append(_cifar(results))
    return "".join(parts)


def _overview(results: Path) -> str:
    rows = [f"| figure | claim | {' | '.join(SHOWN)} |\n", "|---|---|---|---|---|\n"]
    for figure in FIGURES.values():
        kept = {scale: _kept(results, scale, figure) for scale in SHOWN}
        for claim in figure.claims:
            cells = (_cell(kept[scale], claim) for scale in SHOWN)
            rows.append(f"| {figure.name} | {claim.id} | {' | '.join(cells)} |\n")
    return "".join(rows) + OVERVIEW


def _agreement(results: Path) -> str:
    parts = []
    asked: dict[Scale, str] = {"full": AGREEMENT, "reduced": AGREEMENT_CIFAR}
    for scale, text in asked.items():
        found = list(pairs(results, scale))
        counts = {
            "pairs": len(found),
            "same": sum(pair.same for pair in found),
            "mute": sum(pair.mute for pair in found),
            "open": sum(pair.open for pair in found),
            "wrong": sum(pair.contradicts for pair in found),
        }
        parts += [text.format(**counts), table(found, scale)] if found else []
    return "".join(parts)


def _kept(results: Path, scale: Scale, figure: Figure) -> dict[str, list[dict[str, Any]]]:
    """The verdicts kept for a figure at a scale, by claim."""
    found = load(results, scale, figure.name)
    if found is None and not figure.data:  # what is calculated is the same at every scale
        found = load(results, "quick", figure.name)
    by_claim: dict[str, list[dict[str, Any]]] = {}
    for each in found["claims"] if found is not None else ():
        by_claim.setdefault(each["id"], []).append(each)
    return by_claim


def _cell(kept: dict[str, list[dict[str, Any]]], claim: Claim) -> str:
    found = kept.get(claim.id, [])
    if not found:
        return "-"
    states = [each["verdict"] for each in found]
    if len(set(states)) == 1:
        return _loud(states[0])
    return "; ".join(f"{each['prices']}: {_loud(each['verdict'])}" for each in found)


def _loud(state: str) -> str:
    return f"**{state}**" if state == "does not hold" else state


def _section(figure: Figure, results: Path, told: set[str]) -> str:
    """One figure; `told` are explanations given earlier, which need not be repeated."""
    lines = [f"\n## {figure.name}: {figure.title}\n\n", _paragraph(figure.caption)]
    shown: tuple[Scale, ...] = SHOWN if figure.data else ("quick",)
    for scale in shown:
        found = load(results, scale, figure.name)
        if found is not None and found["lines"]:
            text = f"* {scale}: {found['setting']}; {found['seeds']} seeds. {_ends(found)}"
            lines += ["\n", _paragraph(text, "  ")]
    for claim in figure.claims:
        lines += ["\n", _paragraph(f"**{claim.id}** {claim.sentence}"), "\n"]
        kept = [(s, each) for s in shown for each in _kept(results, s, figure).get(claim.id, ())]
        for scale, each in kept:
            text = f"* {_heading(scale, figure, each)}: {_verdict(each)}"
            lines.append(_paragraph(text, "  "))
        open_ones = {each["verdict"] for _, each in kept} & {"does not hold", "not decided"}
        lines += _told_once(claim.note, "", told)
        if open_ones:
            lines += _told_once(claim.otherwise, "Where it does not hold or is open: ", told)
    return "".join(lines)


def _told_once(text: str, before: str, told: set[str]) -> list[str]:
    if not text or text in told:
        return []
    told.add(text)
    return ["\n", _paragraph(before + text)]


def _paragraph(text: str, indent: str = "") -> str:
    return fill(text, 100, subsequent_indent=indent, break_long_words=False) + "\n"


def _heading(scale: str, figure: Figure, each: dict[str, Any]) -> str:
    scale = scale if figure.data else "calculated"
    return f"{scale}, prices {each['prices']}" if each["prices"] else scale


def _ends(found: dict[str, Any]) -> str:
    """Where every line ended."""
    ends: dict[str, list[str]] = {}
    for label, line in found["lines"].items():
        accuracy = [value for value in line["accuracy"] if value is not None]
        mean = f"{100 * sum(accuracy) / len(accuracy):.1f} %" if accuracy else "none"
        gone = f" ({line['diverged']} diverged)" if line["diverged"] else ""
        ends.setdefault(f"{line['iterations']:,.0f}", []).append(f"{label} {mean}{gone}")
    return " ".join(
        f"Accuracy after {iterations} iterations: {'; '.join(lines)}."
        for iterations, lines in ends.items()
    )


def _verdict(each: dict[str, Any]) -> str:
    said = _loud(each["verdict"])
    if each["effect"] is not None:
        said += f", effect {_number(each['effect'])} {each['unit']}".rstrip()
        if each["error"]:
            said += f" (error {_number(each['error'])}; {each['alike']} of {each['seeds']} seeds)"
        elif 0 < each["seeds"] < ENOUGH:
            said += f" ({each['alike']} of {each['seeds']} seeds; {ENOUGH} are needed)"
    if each["numbers"]:
        told = ", ".join(f"{name} {_number(value)}" for name, value in each["numbers"].items())
        said += f" [{told}]"
    return said


def _number(value: float | str | None) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _cifar(results: Path) -> str:
    """What all of CIFAR-10 would take."""
    file = results / HOURS.name
    if not file.is_file():
        return ""
    found = json.loads(file.read_text(encoding="utf-8"))
    rate, rows = found["samples_per_second"], []
    for name, examples in found["examples"].items():
        hours = [
            f"{SEEDS * examples[scale] / rate / 3600:,.1f}" if scale in examples else "-"
            for scale in ("reduced", "full")
        ]
        command = f"`sdfeel figure {name} --scale full --data DIRECTORY`" if name in FIGURES else ""
        rows.append(f"| {name} | {command} | {' | '.join(hours)} |\n")
    return CIFAR.format(rate=rate, iteration=500 / rate, rows="".join(rows))


def main() -> None:
    """Rewrite the page."""
    DOCUMENT.write_text(document(RESULTS), encoding="utf-8")


HEAD = """# The paper's claims, checked

This page is written by `python -m sdfeel.figures.document` from the files in `results/`; do not
edit it. Each claim states, in our words, what a figure, table or remark of the paper says, and is
judged on runs that one command repeats:

```console
$ sdfeel figure 3
```

<!-- not run: it takes minutes, and hours on the real data sets -->
```console
$ sdfeel figure 4a                                     # quick scale: digits
$ sdfeel figure 4b --scale reduced --data DIRECTORY    # CIFAR-10, fewer clients and iterations
$ sdfeel figure 4a --scale full --data DIRECTORY       # the paper's data and model
$ make figures                                         # all at quick scale; fails if one flips
```

Finished runs are kept in your cache, and figures share them: a second call only draws, and an
interrupted one picks up where it left off. Pictures are drawn into `runs/figures/`. `--records
results` keeps new verdicts.

## How to read the verdicts

* A claim is judged on the means over seeds. *A is above B* holds if the means differ by more than
  the pooled standard error, does not hold if they differ by more than that the other way, and is
  not decided otherwise, or with fewer than three seeds. *A is at least B* fails only if A is below
  B by more than the error. The effect is positive when it supports the claim. After the error comes
  the number of seeds that support the claim when each is compared with itself: runs with the same
  seed share their data, their clusters and their first model, so the seeds may agree on a
  difference that is smaller than the scatter between them.
* "Faster" compares the mean accuracy (or training loss) over the common window, without its first
  tenth: curves that end in the same place still differ in how soon they got there.
* Claims about time are judged under two price lists. The constants in the paper's text contradict
  its figures, so both readings are shown:
"""
SCALES = """
* `full` is MNIST (60,000 images) or Fashion-MNIST with the 21,840-parameter CNN and its dropout, 50
  clients, 10 servers, batch 10. The learning rate is 0.01: at the printed 0.001 plain SGD is very
  slow, and the paper's own figure 11(a) finds 0.01 faster; figures whose names end in `-rate` use
  0.001. Races between schemes (4a, 5a) last 1,320 local iterations, which is 40 s at prices A, the
  others 600, and 10a 300.
* `reduced` is CIFAR-10 as far as two shared cores go: the real images and the 5,852,170-parameter
  CNN with its BatchNorm and dropout, 10 servers and batch 10, but **10 clients in place of 50 (one
  per server), 40 iterations in place of 600 or 1,320 (8b: 50; 10b: rounds of 2 batches in place of
  1,000), a learning rate of 0.1 in place of 0.01** (even so, the loss leaves its first plateau only
  after 20 iterations), **Metropolis weights in place of the paper's matrix**, and accuracy measured
  on 500 of the 10,000 test images. It shows how training begins, not where it ends.
* Why other weights: with one client per server, clusters differ in size by up to four times, and
  the paper's matrix then gives some models weights as low as -0.79. With it and one exchange, both
  alpha-1 lines of 6b diverged with seed 0, after 18 iterations on the full graph and after 34 on
  the ring; with Metropolis weights, which are never negative, the same two runs end at 29.2 % and
  26.0 %. With 50 clients the paper's lowest weights are between -0.02 and -0.21 (ring, full graph;
  -0.59 to -0.73 on the star).
* `quick` trains a perceptron on the built-in digits, split among 50 clients like the real data and
  priced like the paper's models. Where digits cannot stand in for the real data, quick scale shows
  its numbers and gives no verdict ("cannot judge").

## What was chosen after looking at results

A verdict is worth less if its rule was made, or changed, after seeing numbers. That is the case
for:

* 4.2b: "restless" was first the scatter of the steps between measurements. By that measure it did
  not hold on MNIST at prices A, because HierFAVG was still falling steeply. We replaced it with the
  distance from the line between neighbours, by which it holds. At prices E it held by both.
* 5.1, 5.2: the race on MNIST was first 1,020 iterations long; its first seed ended at 89.9 %, below
  the target, and we made it 1,320. The target on digits was first 85 %; with it, 5.1 at quick scale
  and prices E was not decided, and 5.2 did not hold at either price list. We made it 90 %, MNIST's
  target, with which 5.1 holds.
* 7a.1b, 9a.1b and 9a.1c were added after 7a.1 and 9a.1 had failed on MNIST. They ask about the end
  of the window instead of all of it, and 9a.1c leaves out c = 10. They are findings about when the
  order reverses, not confirmations of the paper's claims.
* B5 was first measured at moments between gossips, where one seed contradicted it.
* 10a: the spread of speeds and the number of rounds were lowered to save time, before any run on
  MNIST and after one seed on digits.
* Quick scale: we decided which claims it cannot judge by looking at where it differed from full
  scale; the reasons are given below. Measuring three times as often changed none of that.
* Reduced scale: its learning rate was chosen on ten iterations of SD-FEEL with 20 clients (at 0.05
  and at 0.1), before any other scheme was run; its target (5b), 25 %, before any run. 4b, 5b and 6b
  were first run with the paper's matrix; we changed to Metropolis weights after 6b had diverged,
  before any run of 7-cifar, 8b, 9b and 10b. With the paper's matrix 5.1 held; now it is not
  decided, because not all seeds reach 25 %. The other verdicts of 4b and 5b are the same with both.

The reasons given for a failure are our reading of the curves; we did not test any of them with a
separate experiment. Claim 4.1c is ours and contradicts the paper. R3b, T1, 3.1, 4.1c, 4.4 and B2
are calculations.
"""
OVERVIEW = """
A single verdict means that it is the same under both price lists, or that time does not matter. A
dash means that there is no such scale, or no result. CIFAR-10 has not been run in full: see the
last section.
"""
AGREEMENT = """
## Does quick scale agree with the others?

Of {pairs} verdicts that exist both at full and at quick scale, {same} are the same, quick scale
cannot judge {mute}, {open} are decided at only one of the scales, and {wrong} contradict each
other:

"""
AGREEMENT_CIFAR = """
CIFAR-10 has no full results to compare its quick verdicts with. Of {pairs} verdicts that exist both
at reduced and at quick scale, {same} are the same, quick scale cannot judge {mute}, {open} are
decided at only one of the scales (often for lack of seeds), and {wrong} contradict each other:

"""
CIFAR = """
## CIFAR-10 in full

The data and the model are the paper's here, too, but two cores without an accelerator train
{rate:,.0f} images per second when they do nothing else (`sdfeel bench --work cifar-cnn`, see
[performance](performance.md)), so 50 clients take one local iteration in {iteration:.1f} s. At that
rate, training each figure with three seeds takes (they share runs: 5b has all of 4b's)

| figure | command | reduced, hours | full, hours |
|---|---|---|---|
{rows}
Measuring and loading come on top of that. The verdicts at reduced scale are about how training
begins, with ten clients: they leave open what happens with 50 clients and after hours of training.
"""

if __name__ == "__main__":
    main()
