"""A table loses nothing, however narrow the window is: its lines are wrapped instead."""

from io import StringIO

from hypothesis import given
from hypothesis import strategies as st
from rich import box
from rich.table import Table

from sdfeel.cli.common import Tables
from tests.examples import examples

WORDS = st.text("abcdefg", min_size=1, max_size=12)
CELLS = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)
KINDS = st.tuples(st.booleans(), st.sampled_from(["fold", "ellipsis"]))  # no_wrap, overflow


def letters(text: str) -> dict[str, int]:
    return {each: text.count(each) for each in "abcdefg"}


@examples(150)
@given(
    st.integers(1, 100),
    st.lists(st.tuples(KINDS, st.lists(CELLS, min_size=3, max_size=3)), min_size=1, max_size=9),
    st.booleans(),
)
def test_every_letter_of_every_cell_is_printed(
    width: int, columns: list[tuple[tuple[bool, str], list[str]]], framed: bool
) -> None:
    table = Table(box=box.SIMPLE_HEAD if framed else None, pad_edge=False)
    for (no_wrap, overflow), (title, *_) in columns:
        table.add_column(title, no_wrap=no_wrap, overflow=overflow)  # type: ignore[arg-type]
    for n in (1, 2):
        table.add_row(*(cells[n] for _, cells in columns))
    console = Tables(file=StringIO(), width=width)
    console.print(table)
    assert isinstance(console.file, StringIO)
    wanted = "".join(cell for _, cells in columns for cell in cells)
    assert letters(console.file.getvalue()) == letters(wanted)
    assert console.width == width


def test_a_table_that_fits_is_not_widened() -> None:
    console = Tables(file=StringIO(), width=30)
    table = Table("name", "meaning", box=None)
    table.add_row("alpha", "exchanges with the neighbours in one gossip")
    console.print(table)
    assert isinstance(console.file, StringIO)
    assert max(map(len, console.file.getvalue().splitlines())) <= 30
