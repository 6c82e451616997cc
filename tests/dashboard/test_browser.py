"""The page as people use it: Chromium, real runs, mouse and keys."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="browser tests need playwright")

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.cli.command import Child, call, settings
from tests.dashboard.browser import FLAGS, browser_path, served
from tests.dashboard.logs import events, line, started, write

pytestmark = pytest.mark.skipif(
    browser_path() is None, reason="no Chromium here: install the package `chromium`"
)
DEADLINE = 60_000  # milliseconds
LONG = settings(training_iterations="100000", training_engine="loop")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=DEADLINE)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=browser_path(), args=FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two real runs, and one with a damaged log."""
    directory = tmp_path_factory.mktemp("served")
    for scheme in ("sd-feel", "async-sd-feel"):
        done = call("run", *settings(scheme_name=scheme), "--out", directory / "race" / scheme)
        assert done.code == 0, done.err
    write(directory / "bad", [started()], b"<img src=x onerror=alert(1)>\n")
    return directory


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    with served(runs, "--allow-start") as found:
        yield found


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """A window in which nothing may go wrong or be asked of another host."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, base_url=address)
    context.set_default_timeout(DEADLINE)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.on("request", lambda r: wrong.append(r.url) if not r.url.startswith(address) else None)
    yield page
    context.close()
    assert wrong == []


def names(page: Page) -> list[str]:
    return page.locator(".runs tbody td.name").all_inner_texts()


def test_the_list_is_sorted_and_filtered(page: Page) -> None:
    page.goto("/")
    expect(page.locator(".runs tbody tr")).to_have_count(3)
    page.get_by_role("button", name="run", exact=True).click()
    assert names(page) == ["bad", "race/async-sd-feel", "race/sd-feel"]
    page.get_by_role("button", name="run", exact=True).click()
    assert names(page) == ["race/sd-feel", "race/async-sd-feel", "bad"]
    page.get_by_label("Filter by name").fill("async")
    assert names(page) == ["race/async-sd-feel"]
    page.get_by_label("Filter by name").fill("")
    page.get_by_label("State").select_option("damaged")
    assert names(page) == ["bad"]
    page.reload()
    expect(page.locator(".runs tbody tr")).to_have_count(1)  # the address keeps the filter


def test_new_runs_appear_by_themselves(page: Page, runs: Path) -> None:
    page.goto("/")
    expect(page.locator(".runs tbody tr")).to_have_count(3)
    write(runs / "late", events())
    expect(page.locator("tr[data-name=late] .state")).to_have_text("finished")
    (runs / "late" / "events.jsonl").unlink()
    expect(page.locator(".runs tbody tr")).to_have_count(3)


def test_a_run_is_followed_while_it_runs(page: Page, runs: Path, tmp_path: Path) -> None:
    child = Child(tmp_path, "run", *LONG, "--out", runs / "live")
    try:
        child.until(lambda: (runs / "live" / "events.jsonl").exists())
        page.goto("/run?name=live")
        expect(page.locator(".title .pill")).to_have_text("running")
        figure = page.locator(".figures div", has_text="iterations").locator("dd")
        seen = figure.inner_text()
        expect(figure).not_to_have_text(seen)
        expect(page.locator("#live")).to_have_text("live")
    finally:
        child.process.terminate()
        child.end()
    expect(page.locator(".title .pill")).to_have_text("stopped")


def test_the_slider_plays_the_graph_back(page: Page) -> None:
    page.goto("/run?name=race/async-sd-feel")
    slider, time = page.get_by_label("Moment of the run"), page.locator(".player output")
    expect(page.locator(".network .server")).to_have_count(3)
    end = time.inner_text()
    shown = page.locator(".network").inner_html()
    slider.press("Home")
    expect(time).to_have_text("0 s · iteration 0")
    assert page.locator(".network").inner_html() != shown
    slider.press("ArrowRight")
    expect(time).not_to_have_text("0 s · iteration 0")
    slider.press("End")
    expect(time).to_have_text(end)
    assert page.locator(".network").inner_html() == shown
    page.get_by_role("button", name="Play").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    expect(page.get_by_role("button", name="Play")).to_be_visible()  # it ends by itself
    expect(time).to_have_text(end)


def test_a_run_shows_all_its_parts(page: Page) -> None:
    page.goto("/run?name=race/sd-feel")
    expect(page.locator(".chart path.curve")).to_have_count(3)
    expect(page.locator(".tall svg rect").first).to_be_visible()
    expect(page.locator(".phases .track")).to_have_count(3)
    expect(page.locator(".heat")).to_have_count(2)
    expect(page.locator(".keys .changed", has_text="servers")).to_be_visible()
    page.get_by_label("Kind of event").select_option("finished")
    expect(page.locator(".fields")).to_have_count(1)
    with page.expect_download() as saved:
        page.get_by_role("link", name="log", exact=True).click()
    assert Path(saved.value.path()).read_bytes().startswith(b'{"event": ')


def test_charts_are_read_with_keys(page: Page) -> None:
    page.goto("/run?name=race/sd-feel")
    page.get_by_role("img", name="test accuracy (%) against virtual time").press("End")
    accuracy = page.locator(".figures dd").first.inner_text()
    expect(page.locator(".chart .readout").first).to_contain_text(accuracy)


def test_runs_are_chosen_compared_and_the_link_keeps_them(page: Page) -> None:
    page.goto("/")
    for name in ("race/sd-feel", "race/async-sd-feel"):
        page.get_by_label(f"Choose {name}", exact=True).check()
    page.get_by_role("link", name="Compare").click()
    expect(page.locator(".chart").first.locator("path.curve")).to_have_count(2)
    target = page.get_by_label("Target accuracy in percent")
    target.fill("30")
    target.press("Enter")
    expect(page.get_by_role("columnheader", name="time to 30 %")).to_be_visible()
    differs = page.locator("tr", has_text="scheme.name").locator("td.differs")
    expect(differs).to_have_count(1)
    page.reload()
    expect(page.get_by_role("columnheader", name="time to 30 %")).to_be_visible()
    expect(page.locator(".chart").first.locator("path.curve")).to_have_count(2)


@pytest.mark.slow
def test_a_run_is_started_stopped_and_resumed(page: Page, runs: Path) -> None:
    page.goto("/new")
    page.get_by_label("name", exact=True).first.fill("mine")
    page.get_by_label("iterations", exact=True).fill("0.5")
    page.get_by_role("button", name="Start").click()
    assert page.url.endswith("/new")  # the browser itself refuses half an iteration
    page.get_by_label("iterations", exact=True).fill("200000")
    page.get_by_label("engine", exact=True).select_option("loop")
    page.get_by_role("button", name="Start").click()
    expect(page.locator(".jobs")).to_contain_text("mine")
    expect(page.locator("tr[data-name=mine] .state")).to_have_text("running")
    page.goto("/run?name=mine")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".title .pill")).to_have_text("stopped")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".title .pill")).to_have_text("running")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".title .pill")).to_have_text("stopped")
    assert "iterations = 200000\n" in (runs / "mine" / "experiment.toml").read_text()


def test_a_damaged_log_is_shown_as_such_and_as_text(page: Page) -> None:
    page.goto("/run?name=bad")
    expect(page.locator(".warnings")).to_contain_text("The log is damaged")
    expect(page.locator(".title .pill")).to_have_text("damaged")
    expect(page.locator(".fields", has_text="<img src=x")).to_be_visible()


@pytest.mark.parametrize("name", ["../../etc", "/etc", "<img src=x onerror=alert(1)>", "..%2f.."])
def test_a_hostile_path_is_refused_in_words(page: Page, name: str) -> None:
    page.goto("/")
    page.evaluate("name => location.assign('/run?name=' + encodeURIComponent(name))", name)
    expect(page.get_by_role("alert")).to_contain_text("This cannot be shown")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_nothing_is_wider_than_the_window(page: Page, width: int, colours: str) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.emulate_media(color_scheme="dark" if colours == "dark" else "light")
    for path in ("/", "/run?name=race/sd-feel", "/new", "/compare?run=race/sd-feel"):
        page.goto(path)
        expect(page.locator("main h1")).to_be_visible()
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(wide) == 0
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(15, 19, 24)" if colours == "dark" else "rgb(244, 246, 248)")


def test_without_permission_there_is_nothing_to_start(browser: Browser, runs: Path) -> None:
    with served(runs) as address:
        page = browser.new_page(base_url=address)
        page.goto("/new")
        expect(page.get_by_role("alert")).to_contain_text("--allow-start")
        expect(page.locator("#new")).to_be_hidden()
        page.close()


def test_a_log_line_can_grow_while_it_is_shown(page: Page, runs: Path) -> None:
    run = write(runs / "grows", [started()])
    whole = line(events()[2])
    page.goto("/run?name=grows")
    expect(page.locator(".chart").first).to_contain_text("nothing measured yet")
    with (run / "events.jsonl").open("ab", buffering=0) as file:
        file.write(whole[:40])
        file.write(whole[40:])
    expect(page.locator(".figures")).to_contain_text("test accuracy")
