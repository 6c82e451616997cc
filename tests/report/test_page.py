"""What the page holds, and what it must not."""

from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sdfeel.report.history import History
from sdfeel.report.page import page, write_page
from tests.report.runs import measured, runs, started

VOID = {"meta", "br", "hr", "img", "input", "link"}
NASTY = '<script>alert("x")</script>'


class Reader(HTMLParser):
    """Checks that what opens closes, and keeps what a test may ask for."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(histories: list[History], target: float | None = 0.8) -> Reader:
    return Reader(page("Four schemes", histories, target, "tau1 = 5", ["a note"]))


@cache
def four(metrics: bool = False) -> str:
    """The page about four runs, drawn once for all tests that look at it."""
    return page("Four schemes", runs(metrics=metrics), 0.8, "tau1 = 5", ["a note"])


def test_the_page_is_well_formed_and_says_what_the_table_says() -> None:
    reader = Reader(four())
    for words in ("Four schemes", "tau1 = 5", "a note", "not reached", "★ 91.6 %", "step size"):
        assert words in reader.text
    assert reader.all("html") == [{"lang": "en"}]
    assert len(reader.all("title")) == 1


def test_the_page_loads_nothing_from_anywhere() -> None:
    html = four(metrics=True)
    assert "http://" not in html
    assert "https://" not in html
    assert "@import" not in html
    reader = Reader(html)
    tags = {tag for tag, _ in reader.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "image"}
    targets = [value for _, own in reader.tags for name, value in own.items() if name == "href"]
    assert targets
    assert all(value is not None and value.startswith("#") for value in targets)
    assert not any("src" in attributes for _, attributes in reader.tags)


def test_names_inside_the_page_are_unique() -> None:
    names = [own["id"] for _, own in Reader(four()).tags if "id" in own]
    assert len(names) == len(set(names))


def test_what_people_wrote_is_escaped_everywhere() -> None:
    events = [started(NASTY), measured(1, 0.5, metrics={NASTY: 0.5}), *runs()[0].events[1:]]
    html = page(NASTY, [History.of(NASTY, events)], 0.4, NASTY, [NASTY])
    assert "<script" not in html
    reader = Reader(html)
    assert not reader.all("script")
    assert reader.text.count(NASTY) >= 6


def test_every_chart_and_table_header_has_words_for_screen_readers() -> None:
    reader = Reader(four(metrics=True))
    charts = [own for own in reader.all("div") if own.get("role") == "img"]
    assert len(charts) == 8
    assert all(own.get("aria-label") for own in charts)
    assert "test accuracy (%) against virtual time, 4 lines" in {
        own["aria-label"] for own in charts
    }
    assert all(own.get("scope") in ("row", "col") for own in reader.all("th"))


@pytest.mark.usefixtures("_undrawn")
def test_each_clients_own_model_is_drawn_and_described() -> None:
    assert "own model" not in Reader(four()).text
    own = replace(measured(1, 0.75), personal=(0.75, 0.5, 1.0))
    reader = read([History.of("mine", [started(), own])])
    assert "Each client's own model" in reader.text
    said = [each.get("aria-label") or "" for _, each in reader.tags]
    assert any("client 1 has the lowest accuracy of its own model, 50.0 %" in one for one in said)


@pytest.mark.usefixtures("_undrawn")
def test_a_page_without_results_still_opens() -> None:
    assert "not finished" in read([History.of("young", [started()])], None).text
    assert "0 runs" in read([], None).text


def test_a_page_is_written_whole_with_any_label(tmp_path: Path) -> None:
    html = page("\ud800 t", [History.of("学习 \x1b[1m", runs()[0].events)], None, "")
    write_page(tmp_path / "out" / "page.html", html)
    assert "学习" in (tmp_path / "out" / "page.html").read_text("utf-8")
    assert len(list((tmp_path / "out").iterdir())) == 1
