"""The main pages in Firefox: `make test-firefox`."""

import os
from pathlib import Path

import pytest

from sdfeel.core.run_files import EXPERIMENT
from tests.dashboard.browser import served
from tests.dashboard.firefox import firefox, firefox_path
from tests.dashboard.logs import events, write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "FIREFOX" not in os.environ or firefox_path() is None,
        reason="no Firefox here, or not asked for: `make test-firefox`",
    ),
]
DRAWN = "[...document.querySelectorAll('.plot canvas')].some((each) => each.width > 0)"
LEFT = "was interrupted while the page was loading"  # Firefox, of streams of pages that are left
RIGHT, TAB = "\ue014", "\ue004"


def test_the_main_pages_load_draw_and_take_keys(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    for name in ("one", "two"):
        write(tmp_path / "runs" / name, events())
        text = "[network]\nclients = 6\nservers = 3\n"
        (tmp_path / "runs" / name / EXPERIMENT).write_text(text)
    with served(tmp_path / "runs", "--allow-start") as address, firefox(tmp_path / "home") as fox:
        fox.open(f"{address}/")
        fox.until("document.querySelectorAll('.runs tbody tr').length === 2")
        fox.press(TAB)
        assert fox.value("document.activeElement.className") == "skip"
        fox.open(f"{address}/run?name=one")
        fox.until(DRAWN)
        fox.value("document.querySelector('.plot[tabindex]').focus()")
        fox.press(RIGHT)
        fox.until("document.querySelector('.readout').textContent")
        fox.value("document.querySelector('.whatif').scrollIntoView()")
        fox.until("document.querySelector('.whatif tbody td')")
        fox.value("document.getElementById('knob-scheme.tau1').focus()")
        fox.press(RIGHT)
        fox.until("document.querySelector('.whatif [role=status]').textContent")
        fox.open(f"{address}/compare?run=one&run=two")
        fox.until(f"{DRAWN} && document.querySelectorAll('.legend button').length === 2")
        fox.open(f"{address}/new")
        fox.until("document.querySelector('form input[name=name]')")
        assert [each for each in fox.wrong if LEFT not in each] == []
