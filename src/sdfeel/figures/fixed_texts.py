"""The texts of docs/reproduce.md that no result changes."""

HEADLINES = {  # short: they stand on the first screen, which has ten lines
    "4.1": "SD-FEEL beats HierFAVG",
    "5.1": "first at 90 %",
    "5.3": "FedAvg is unusable",
    "4.4": "HierFAVG is close",
    "6a.2": "HierFAVG wins on slow links",
    "7a.1": "averaging often is best per step",
    "7b.1": "averaging less is faster",
    "8.1": "more links give better models",
    "9a.1": "more classes are faster",
    "10a.1-4": "not waiting is faster",
    "10a.4": "staleness weights are much better",
    "11a.2": "a learning rate of 0.1 is unstable",
    "11b.2": "unequal clusters are slower",
    "S7-4": "not waiting",
    "S6-4": "waiting",
    "S9-4": "one tier",
}
HEAD = """# The paper's claims, checked

The paper is [Sun et al. 2021](https://arxiv.org/abs/2112.10313); each link below leads to a claim.

"""
FIRST = (
    "All claims are judged by [a rule] fixed before these runs ([not before all][looked]); an "
    "iteration is a batch (A) or a pass over a client's data (E)."
)
PLACES = """[a rule]: #how-claims-are-judged
[looked]: #what-was-chosen-after-looking-at-results
[a small model]: reproduce/cifar10.md
[tiers]: schemes.md#tiers
"""
READ = """
## Look for yourself

```console
$ sdfeel figure 3
```

calculates figure 3 and judges its claims. In a clone, a figure that needs runs is drawn from its
kept curves in a second (`--format pdf` is for papers), and `--run` computes them again. `python -m
sdfeel.figures.document` writes these pages.

<!-- not run: it needs results/, minutes, and hours on the real data sets -->
```console
$ sdfeel figure 4a                                             # from results/
$ sdfeel figure 4a --run                                       # digits, minutes
$ sdfeel figure 4a --scale full --run --data DIRECTORY         # the paper's data and model
$ sdfeel figure 4a --scale full --run --keep --data DIRECTORY  # and keep curves and verdicts
$ make figures                  # all at quick scale; fails if a number or a verdict has changed
```

Interrupted commands continue where they stopped. `results/` has the curves (`*.curves.xz`: JSON,
with versions, CPU, instruction set, engine, data hashes and commit), the verdicts (`*.json`), and
every claim of the paper with the lines where it stands (`claims.csv`). Whoever doubts a verdict
need not compute a whole figure: `python -m tests.tools.spot_check 10 --data DIRECTORY` trains ten
kept runs again, drawn at random, and compares every number. "With changes" beside a commit means
that some files were not committed when a run began; often these were kept results.

## How claims are judged

* Runs of one seed share their data, their clusters and their first model, so each seed is compared
  with itself. *A is above B* **holds** if Student's 95 % interval of the mean difference lies above
  0, **does not hold** (**no** in tables, *fails* above) if it lies below, and is **open** (*not
  decided* on the figures' pages) otherwise, or with fewer than three seeds.
* *As good as*, *no worse* and every word of size have a margin, fixed before these runs (table
  below): the whole interval must lie on the right side of it.
* A run that does not reach a target by the end of the window has a time of at least the window, not
  infinity, and a run that diverged is worse than any that did not. Such pairs have a certain order
  but no size, so their signs are counted: all of five seeds must agree (5 % on one side).
* Figures under A with a claim that five seeds leave open are given eight. That is a second look, so
  a verdict of eight seeds must be twice as clear: its interval is one of 97.5 %, and all signs must
  agree. It replaces what five seeds said, also where that was clearer. Judged twice, a claim is
  wrong by luck in at most 7.5 % of cases, not 5 %.
* Student's interval takes differences to be roughly normal. Where they are very skewed (log-normal,
  say), five seeds are wrong in up to a fifth of cases; the count of seeds beside a verdict tells.
  What happens in one run of ten, such as a collapse, is often missed by five.
* A claim of several parts holds if each part does. For one of k parts to refute it (or, where one
  is enough, to prove it), the part must be k times as clear.
* "Faster" compares the mean accuracy (or training loss) over the common window, without its first
  tenth. Lines that race end at the same virtual time.

The paper leaves open what one local iteration is, and its constants contradict its figures. So
every claim on MNIST is judged under two readings, each trained as it is charged (below). Under
both, a model's "32 Mbits" are read as 32 bits for each of its M parameters: with 32 million bits,
SD-FEEL could not take more than 35 iterations in 50 s.

"""
DESIGN = """
`full` is MNIST or Fashion-MNIST with the 21,840-parameter CNN and its dropout, 50 clients, 10
servers, batch 10, five or eight seeds ([design, cost and order](reproduce/full.md)). Races (4a, 5a)
last 50 s, 10 s more than the paper needs to converge. Figures per iteration take 600 batches (A) or
60 passes (E, about as much training). Figure 7's lines last at least as long as tau1 = 5 needs for
them, and 6a's end when SD-FEEL at 50 Mbit/s has taken them. 10a lasts 12 synchronous rounds of 100
batches (A) or 72 (E), at H = 1, 4 and 10, and is judged by mean accuracy, final accuracy and final
loss, which must agree. `small` is CIFAR-10 with a small model ([design](reproduce/cifar10.md)); for
methods that cancel drift, it is the full setting with 20 clients and 300 iterations. `quick` trains
a perceptron on digits, split and priced like the real data. All of this was written down before the
first run was judged by it.

## Sizes, fixed before these runs

"""
ALL = """
Another page has [all verdicts](reproduce/verdicts.md) in a table, and says which of them remain if
all are to be right together.
"""
LINKS = (
    "[All figures](../reproduce.md) · [How claims are judged, and what A and E "
    "mean](../reproduce.md#how-claims-are-judged)"
)
VERDICTS = f"""# All verdicts

{LINKS}

A dash stands for a verdict that the design asks for ([MNIST](full.md), [CIFAR-10](cifar10.md)) but
that has not been computed; in empty cells, none was planned. *Numbers* stands for a claim that only
reports them.

"""
OPEN = """
## Not computed with this rule yet

What the designs for [MNIST](reproduce/full.md) and [CIFAR-10](reproduce/cifar10.md) ask for and
nobody has computed. Finished runs are kept, and the commands continue from there.

"""
QUICK = """
## What quick scale may judge

The rule does not look at verdicts from all seeds. It halves the seeds at full scale: quick scale
may judge a claim if it reaches a verdict on digits and the first half of the seeds is on the same
side; the second half then tests that. Of {pairs} verdicts that exist at both scales (with at least
four full seeds), quick scale may judge {may}, and the second half confirms {kept} of them.
"""
CHOSEN = """
## What was chosen after looking at results

A verdict is worth less if its rule was made, or changed, after seeing numbers. All figures on MNIST
had been run before with another rule (three seeds, pooled errors, races cut by iterations, and a
price list E that charged for a pass but trained a batch), and the sizes above were chosen by people
who had seen those numbers ([what changed](reproduce/changes.md)). In particular:

* 4.2b: "restless" was first the scatter of the steps between measurements. By that measure it did
  not hold on MNIST under reading A, because HierFAVG was still falling steeply.
* The target on digits was first 85 %; we made it 90 %, MNIST's target, after 5.1 had come out open.
* 9a.1b, 9a.1c, 7a.1b and 8.1b were added after 9a.1, 7a.1 and 8.1 had failed or were open. They are
  findings about when and between whom the order reverses, not confirmations.
* 10a: the values of H and the length are ours; three statistics were taken because earlier results
  depended on which one was used.
* tiers were first measured every fifth round. With equal devices all servers are one tier, so that
  was every fifth round of everybody, and tiers came out three points slower on digits than
  synchronous training with the same momentum, although both compute the same models there. Now all
  are measured equally often, and the two lines are the same (S3-1).
* [tiers-tuned](reproduce/tiers-tuned.md): a sixth rate, 0.8, was added when 0.4 was the best of
  five for six lines on the seed for choosing; nothing had been judged then. The line with one tier
  and S9 to S12 were added when S5 to S8 had been judged on digits, before any run on MNIST. S17 was
  added after S9 and S12 had been judged on MNIST, because both depend on how the time between two
  measurements is counted; the verdicts of 10a and of `tiers` do not depend on that.

The reasons given for failures are our reading of the curves; none was tested by an experiment of
its own. Claim 4.1c is ours and contradicts the paper; it and the four that were added are not
counted as the paper's. R1, R2 and R3 say "no worse" where the paper says "faster" or "fewer"; 7a.1
and 8.1 take the first two at their word. R3b, R3c, T1, 3.1, 4.1c, 4.4 and B2 are calculations. K3,
L3, M1 and M2 count runs, and make no allowance for luck.

The mixing of our tiers is lazier on the ring ([why](schemes.md#tiers)) since two seeds under
reading E had shown that their momentum otherwise drives servers apart in long runs. Every line that
this changes was computed again, at the learning rates that had been chosen before. First all
weights were halved, as in d2. That cost a point of accuracy after eight rounds, because servers
then agree more slowly. Now the weights are made lazy to the degree at which servers agree fastest,
which depends on the weights and the momentum alone.
"""
