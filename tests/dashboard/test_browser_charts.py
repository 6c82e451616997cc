"""Charts as people read them: Chromium, mouse and keys."""

from collections.abc import Iterator

import pytest

pytest.importorskip("playwright", reason="browser tests need playwright")

from playwright.sync_api import Browser, Page, expect

from tests.dashboard.browser import browser_path, served, window
from tests.dashboard.logs import events, write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        browser_path() is None, reason="no Chromium here: install the package `chromium`"
    ),
]
UNEQUAL = [f"many/run{number}" for number in range(16)]
MANY = "&".join(f"run={name}" for name in UNEQUAL)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A run, and sixteen of which the first ends long before the others."""
    directory = tmp_path_factory.mktemp("charts")
    write(directory / "one", events(80))
    for number, name in enumerate(UNEQUAL):
        write(directory / name, events(20 if number == 0 else 80, seed=number))
    with served(directory) as found:
        yield found


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    with window(browser, address) as page:
        yield page


def test_charts_are_read_with_keys(page: Page) -> None:
    page.goto("/run?name=one")
    page.get_by_role("img", name="test accuracy (%) against virtual time").press("End")
    accuracy = page.locator(".figures dd").first.inner_text()
    expect(page.locator(".chart .readout").first).to_contain_text(accuracy)


def hover(page: Page, share: float, height: float = 0.5) -> str:
    """Point into the first chart; what it says about that place."""
    over = page.locator(".chart .u-over").first
    box = over.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + share * box["width"], box["y"] + height * box["height"])
    return page.locator(".chart .readout").first.inner_text()


def test_a_place_shows_all_runs_that_are_alive_there_and_no_others(page: Page) -> None:
    page.goto(f"/compare?{MANY}")
    expect(page.locator(".chart canvas")).to_have_count(3)
    early, late = hover(page, 0.1), hover(page, 0.9)
    assert early.count("run") == 16
    assert late.count("run") == 15
    assert "run0:" in early
    assert "run0:" not in late
    expect(page.locator(".tip").first.locator("li")).to_have_count(15)
    other = page.locator(".chart .readout").nth(1).inner_text()
    assert other.split(" · ")[0] == late.split(" · ")[0]  # one cursor through all charts


def axis(page: Page) -> list[float]:
    """Where the axis begins and ends."""
    return [float(hover(page, share).split(" ")[0]) for share in (0.001, 0.999)]


def test_a_drag_zooms_all_charts_and_a_double_click_goes_back(page: Page) -> None:
    page.goto("/run?name=one")
    expect(page.locator(".chart canvas")).to_have_count(3)
    whole = axis(page)
    hover(page, 0.25)
    page.mouse.down()
    hover(page, 0.4)
    hover(page, 0.5)
    page.mouse.up()
    expect(page.get_by_role("button", name="Show everything")).to_be_visible()
    part = axis(page)
    assert part[1] - part[0] < 0.5 * (whole[1] - whole[0])
    page.locator(".chart .u-over").nth(1).dblclick()
    expect(page.get_by_role("button", name="Show everything")).to_be_hidden()
    assert axis(page) == whole
    page.locator(".chart .plot").first.press("+")
    expect(page.get_by_role("button", name="Show everything")).to_be_visible()
    page.locator(".chart .plot").first.press("0")
    assert axis(page) == whole


def test_a_cursor_in_a_chart_moves_the_graph_and_the_timeline(page: Page) -> None:
    page.goto("/run?name=one")
    expect(page.locator(".tall svg rect").first).to_be_visible()
    time = page.locator(".player output")
    newest = time.inner_text()
    hover(page, 0.1)
    expect(time).not_to_have_text(newest)
    expect(page.locator(".tall line.cursor")).to_have_css("display", "inline")
    page.mouse.move(0, 0)
    expect(time).to_have_text(newest)
    expect(page.locator(".tall line.cursor")).to_have_css("display", "none")


def test_lines_are_switched_off_smoothed_and_drawn_on_another_scale(page: Page) -> None:
    page.goto(f"/compare?{MANY}")
    first = page.locator(".legend button").first
    first.click()
    expect(first).to_have_attribute("aria-pressed", "false")
    assert "run0:" not in hover(page, 0.1)
    first.click()
    page.locator(".legend button").nth(3).dblclick()
    assert hover(page, 0.1).count("run") == 1
    exact = hover(page, 0.5).split(": ")[1]
    page.get_by_label("Smoothing").press("End")
    assert hover(page, 0.5).split(": ")[1] != exact
    page.get_by_label("Smoothing").press("Home")
    page.get_by_role("button", name="log", exact=True).click()
    assert hover(page, 0.5).split(": ")[1] == exact
    for cost, unit in (
        ("local iterations", ""),
        ("rounds", ""),
        ("modelled energy", "J"),
        ("data moved", "kB"),
    ):
        page.get_by_role("button", name=cost).click()
        assert hover(page, 0.5).split(" · ")[0].endswith(unit)
