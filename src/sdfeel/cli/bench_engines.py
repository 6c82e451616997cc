"""The times of the engines: `sdfeel bench` itself."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer
from rich.table import Table

from sdfeel.cli.common import AsJson, people, print_end, print_json, print_part, results
from sdfeel.cli.lazy import later
from sdfeel.core.errors import unknown

with later():
    from sdfeel.bench import engines as ways_to_train
    from sdfeel.bench import machine_limit
    from sdfeel.engine import base as engine
    from sdfeel.engine.native import build
    from sdfeel.run import provenance


def engines(
    context: typer.Context,
    works: Annotated[
        str,
        typer.Option(
            "--work",
            metavar="NAME,...",
            help="mnist-cnn, mlp, lenet, cifar-cnn, evaluation (10,000 images, MNIST CNN).",
        ),
    ] = "mnist-cnn,mlp,lenet,cifar-cnn,evaluation",
    ways: Annotated[
        str,
        typer.Option(
            "--ways",
            metavar="NAME,...",
            help="naive, centralised, lean, loop, parallel, native, batched (default: all but "
            "batched).",
        ),
    ] = "",
    repeats: Annotated[
        int, typer.Option(min=1, help="Repeats of each measurement; medians are shown.")
    ] = 7,
    device: Annotated[
        str, typer.Option(help="Where the engine batched computes: cpu, cuda or mps.")
    ] = "cpu",
    check: Annotated[
        bool,
        typer.Option("--check", help="Time nothing; compare the models of batched with loop's."),
    ] = False,
    instructions: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Compile the native engine for avx2 or avx512 instead of all that this CPU has.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Time the engines against plain torch code and the machine's limit, interleaved.

    Trust the ratios: samples per second depend on the machine and on what else it does. "% of peak"
    compares the operations of a model, if nothing is skipped, with what the cores can do at most;
    "% needed" leaves out what need not be computed: dropped channels, and gradients of places that
    lost in a maximum. With --json, each work is printed as soon as it is done.

    --instructions changes only the code of native, whose models stay the same to the bit, and the
    peak that speeds are compared with. All other ways use torch, which takes the instructions that
    it finds.

    Examples:

      sdfeel bench

      sdfeel bench --work mnist-cnn --repeats 15 --json

      sdfeel bench --work mlp --instructions avx2

      sdfeel bench --device cuda --check

      sdfeel bench scale

      sdfeel bench plan

      sdfeel bench deploy
    """
    if context.invoked_subcommand is not None:
        return
    chosen = [ways_to_train.find(name.strip()) for name in works.split(",")]
    chosen = [dataclasses.replace(work, device=device) for work in chosen]
    if check:
        _check_device(chosen, as_json)
        return
    names = [name.strip() for name in ways.split(",") if name.strip()] or list(ways_to_train.USUAL)
    if device != "cpu" and "batched" not in names:
        names.append("batched")
    for name in names:
        if name not in ways_to_train.WAYS:
            raise unknown("way", name, ways_to_train.WAYS)
    if "loop" not in names:
        names.append("loop")  # everything is compared with it
    with build.compiled_for(instructions or build.asked_instructions()):
        _timed(chosen, names, repeats, as_json)


def _timed(
    works: list[ways_to_train.BenchWork], names: list[str], repeats: int, as_json: bool
) -> None:
    """Time these ways, and print the speeds: as JSON, or as a table with a header."""
    found = []
    for work in works:
        with people.status(f"timing {work.name}") as status:
            part = ways_to_train.compare(
                work,
                names,
                repeats,
                lambda way, done, all_, s=status, w=work.name: s.update(  # type: ignore[misc]
                    f"timing {w}: {f'repeat {done} of {all_}' if done else 'warming up'}, {way}"
                ),
            )
        found += part
        if as_json:  # at once, so that an interrupted command has printed what was measured
            for speed in part:
                print_part(dataclasses.asdict(speed), speed is found[0])
    if as_json:
        print_end()
        return
    results.print(_header(), highlight=False, soft_wrap=True)
    results.print(_engine_table(found))
    peak = machine_limit.peak()
    people.print(
        f"% of peak: of {peak.flops / 1e9:.0f} GFLOP/s, the speed of {peak.by}, if nothing "
        f"is skipped; % needed: only what cannot be skipped",
        style="dim",
    )


def _header() -> str:
    """The CPU, its instruction sets, and those that native's and torch's code use."""
    own = provenance.machine()
    has = ", ".join(build.available_sets()) or "no instruction set that we know by name"
    return (
        f"{own['CPU']}, {engine.cores()} cores, has {has}; native's code: "
        f"{build.code_instructions()}, torch's: {own['instruction set'].lower()}"
    )


def _check_device(works: list[ways_to_train.BenchWork], as_json: bool) -> None:
    """Compare models that were trained on a device with the loop's; exit with 1 if they differ."""
    found = [ways_to_train.check(work) for work in works if not work.evaluates]
    if as_json:
        print_json([dataclasses.asdict(each) for each in found])
    for each in () if as_json else found:
        verdict = "agrees with the loop" if each.agrees else "DIFFERS from the loop"
        if each.engine != "batched":
            verdict = f"cannot be batched: {each.engine} would train it"
        results.print(f"{each.work} on {each.device}: {verdict} (off by {each.off:.1e} of a step)")
    if not all(each.agrees for each in found):
        raise typer.Exit(1)


def _engine_table(speeds: list[Any]) -> Table:
    table = Table("work", "way", box=None, pad_edge=False)
    for title in ("samples/s", "x loop", "% of peak", "% needed"):
        table.add_column(title, justify="right")
    before = ""
    for speed in speeds:
        table.add_row(
            speed.work if speed.work != before else "",
            speed.way,
            f"{speed.samples_per_second:,.0f}",
            f"{speed.of_loop:.2f}",
            f"{100 * speed.of_peak:.1f}",
            f"{100 * speed.of_needed:.1f}",
        )
        before = speed.work
    return table
