"""The page as people use it: Chromium, real runs, mouse and keys."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

pytest.importorskip("playwright", reason="browser tests need playwright")

from playwright.sync_api import Browser, Page, Route, expect

from tests.cli.command import Child, settings
from tests.dashboard.browser import PATIENCE, browser_path, patient, served, window
from tests.dashboard.logs import events, line, started, write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        browser_path() is None, reason="no Chromium here: install the package `chromium`"
    ),
]
LONG = settings(training_iterations="100000", training_engine="loop")


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    with window(browser, address) as page:
        yield page


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


def test_the_list_answers_questions_and_says_what_it_does_not_understand(page: Page) -> None:
    page.goto("/")
    expect(page.locator(".runs tbody tr")).to_have_count(3)
    box = page.get_by_label("Filter by name")
    answers = {
        "scheme = sd-feel and accuracy > 0": ["race/sd-feel"],
        "network.servers = 3 and not scheme = sd-feel": ["race/async-sd-feel"],
        "(state = damaged or tau1 >= 1) and name ~ a": ["bad", "race/sd-feel"],
        "accuracy > 100%": [],
    }
    page.get_by_role("button", name="run", exact=True).click()
    for question, wanted in answers.items():
        box.fill(question)
        expect(page.locator(".runs tbody td.name")).to_have_text(wanted)
        expect(page.locator("#question")).to_be_empty()
    mistakes = {"accuracy >": "needs a value", "(a": "not closed", "= 3": "a key"}
    mistakes |= {"servers = 3": "network.servers or", "wings = 2": "no run has a key wings"}
    for wrong, why in mistakes.items():
        box.fill(wrong)
        expect(page.locator("#question")).to_contain_text(why)
    box.fill("constructor.constructor(1)")
    expect(page.locator(".runs tbody tr")).to_have_count(0)


def test_the_selection_survives_going_back_and_the_table_is_saved(page: Page) -> None:
    page.goto("/")
    page.get_by_label("Choose race/sd-feel", exact=True).check()
    page.get_by_role("link", name="race/sd-feel", exact=True).click()
    expect(page.locator(".title .pill")).to_have_text("finished")
    page.go_back()
    expect(page.get_by_label("Choose race/sd-feel", exact=True)).to_be_checked()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save table (CSV)").click()
    lines = Path(saved.value.path()).read_text().splitlines()
    assert lines[0].startswith("name,scheme,state,accuracy")
    assert len(lines) == 4


def test_the_list_is_a_workbench(page: Page, runs: Path) -> None:
    """Columns of any key, groups with means, and pictures of what is shown."""
    page.goto("/")
    expect(page.locator(".runs tbody tr")).to_have_count(3)
    column = page.get_by_label("Add a column")
    for key in ("scheme.tau1", "spread"):
        column.fill(key)
        column.press("Enter")
        expect(page.get_by_role("button", name=key, exact=True)).to_be_visible()
    page.get_by_role("button", name="spread", exact=True).click()
    expect(page.locator("th[data-key=spread]")).to_have_attribute("aria-sort", "descending")
    column.fill("wings")
    column.press("Enter")
    expect(page.locator("#question")).to_contain_text("no run has a key wings")
    by = page.get_by_label("Group by")
    by.fill("folder")
    by.press("Enter")
    group = page.locator("tr.group[data-group=race]")
    expect(group).to_contain_text("2 runs")
    expect(group).to_contain_text("⌀")
    shown = page.locator("tbody tr[data-name]")
    expect(shown).to_have_count(0)
    group.get_by_role("button").click()
    expect(shown).to_have_count(2)
    page.reload()  # the address keeps columns and groups
    expect(page.locator("th[data-key=spread]")).to_be_visible()
    expect(page.locator("tr.group")).to_have_count(2)
    page.get_by_text("Parallel coordinates").click()
    expect(page.locator(".parallel .line")).to_have_count(2)
    axis = page.locator(".parallel .hit").last.bounding_box()
    assert axis is not None
    page.mouse.move(axis["x"] + 9, axis["y"] + 2)
    page.mouse.down()
    page.mouse.move(axis["x"] + 9, axis["y"] + 40)
    page.mouse.up()
    expect(page.get_by_role("button", name="Choose these")).to_be_visible()
    page.get_by_text("Accuracy against costs").click()
    expect(page.locator(".pareto .point")).to_have_count(2)
    expect(page.locator(".pareto .best-point").first).to_be_visible()


def test_tags_and_notes_are_kept_beside_the_run_and_stay_text(page: Page, runs: Path) -> None:
    page.goto("/run?name=race/sd-feel")
    page.get_by_role("button", name="tags and note").click()
    page.get_by_label("Tags").fill("paper, <b>bold")
    page.get_by_label("Note", exact=True).fill("<img src=x onerror=alert(1)>")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".notes .tag")).to_have_text(["paper", "<b>bold"])
    page.goto("/?text=tags ~ paper")
    expect(page.locator(".runs tbody td.name")).to_contain_text(["<b>bold"])
    (runs / "race" / "sd-feel" / "notes.json").unlink()
    expect(page.locator(".runs tbody tr")).to_have_count(0)


def test_a_page_of_which_every_request_fails_once_recovers_by_itself(page: Page) -> None:
    """Scripts and styles, requests and streams: all of them break off if the network changes."""
    failed: set[str] = set()

    def once(route: Route) -> None:
        path = urlsplit(route.request.url).path
        if route.request.is_navigation_request() or path in failed:
            route.continue_()
            return
        failed.add(path)
        if path in ("/api/stream", "/api/holdings"):  # not every failure is the network's
            route.fulfill(status=500)
        else:
            route.abort("connectionreset")

    page.route("**/*", once)
    page.goto("/run?name=race/sd-feel")
    expect(page.locator(".title .pill")).to_have_text("finished")
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator(".chart canvas")).to_have_count(3)
    expect(page.locator(".heat")).to_have_count(2)
    assert {"/static/dom.js", "/static/style.css", "/api/about", "/api/stream"} <= failed


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
    expect(page.get_by_role("button", name="Play")).to_be_visible()  # it ends on its own
    expect(time).to_have_text(end)


def test_a_run_shows_all_its_parts(page: Page) -> None:
    page.goto("/run?name=race/sd-feel")
    expect(page.locator(".chart canvas")).to_have_count(3)
    expect(page.locator(".tall svg rect").first).to_be_visible()
    expect(page.locator(".consensus")).to_contain_text("Measured spread")
    expect(page.locator(".consensus")).to_contain_text("Without training")
    expect(page.get_by_role("region", name="what rounds waited for")).to_contain_text(
        "mixing between servers"
    )
    expect(page.locator(".phases .track")).to_have_count(3)
    expect(page.locator(".heat")).to_have_count(2)
    expect(page.locator(".keys .changed", has_text="servers")).to_be_visible()
    page.get_by_label("Kind of event").select_option("finished")
    expect(page.locator(".fields")).to_have_count(1)
    with page.expect_download() as saved:
        page.get_by_role("link", name="log", exact=True).click()
    assert Path(saved.value.path()).read_bytes().startswith(b'{"event": ')


def test_a_run_looks_the_same_in_the_list_and_in_a_comparison(page: Page) -> None:
    page.goto("/")
    drawn = "path => [path.getAttribute('class'), getComputedStyle(path).stroke]"
    looks = {
        name: page.locator(f'tr[data-name="race/{name}"] .sample path').evaluate(drawn)
        for name in ("sd-feel", "async-sd-feel")
    }
    assert looks["sd-feel"] != looks["async-sd-feel"]
    for order in (("sd-feel", "async-sd-feel"), ("async-sd-feel", "sd-feel")):
        page.goto("/compare?" + "&".join(f"run=race/{name}" for name in order))
        for place, name in enumerate(order):
            path = page.locator(".legend button").nth(place).locator("path")
            assert path.evaluate(drawn) == looks[name]


def test_runs_are_chosen_compared_and_the_link_keeps_them(page: Page) -> None:
    page.goto("/")
    for name in ("race/sd-feel", "race/async-sd-feel"):
        page.get_by_label(f"Choose {name}", exact=True).check()
    page.get_by_role("link", name="Compare").click()
    expect(page.locator(".legend button")).to_have_count(2)
    target = page.get_by_label("Target accuracy in percent")
    target.fill("30")
    target.press("Enter")
    expect(page.get_by_role("columnheader", name="time to 30 %")).to_be_visible()
    differs = page.locator("tr", has_text="scheme.name").locator("td.differs")
    expect(differs).to_have_count(1)
    page.reload()
    expect(page.get_by_role("columnheader", name="time to 30 %")).to_be_visible()
    expect(page.locator(".legend button")).to_have_count(2)


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


def test_sliders_ask_the_planner_and_start_what_they_show(page: Page) -> None:
    """With only the keyboard; an answer to an earlier request never stands next to later values."""
    held: list[Route] = []
    page.goto("/run?name=race/sd-feel")
    tau1 = page.get_by_label("tau1", exact=True)
    page.locator(".whatif").scroll_into_view_if_needed()
    expect(tau1).to_have_attribute("aria-valuetext", "5")
    expect(page.locator(".whatif thead th")).to_have_count(3)
    hold = lambda route: held.append(route) if not held else route.continue_()  # noqa: E731
    page.route("**/api/forecast*", hold)
    with page.expect_request("**/api/forecast*tau1=500*"):
        tau1.press("End")
    tau1.press("Home")
    expect(tau1).to_have_attribute("aria-valuetext", "1")
    held[0].continue_()
    said = page.locator(".whatif [role=status]")
    expect(said).to_contain_text("Predicted with your settings: time per round")
    moved = page.locator(".whatif tr", has_text="data moved").locator("td")
    expect(moved.last).to_have_text("5 times")
    page.get_by_role("link", name="Start this").press("Enter")
    expect(page.get_by_label("tau1", exact=True)).to_have_value("1")
    expect(page.get_by_label("name", exact=True).first).to_have_value(re.compile("sd-feel-tau1=1"))
    page.go_back()
    page.locator(".whatif").scroll_into_view_if_needed()
    tau1.press("End")
    page.get_by_role("button", name="Back to the run's settings").click()
    expect(tau1).to_have_attribute("aria-valuetext", "5")
    page.goto("/run?name=bad")
    page.locator(".whatif").scroll_into_view_if_needed()
    reason = "No prediction: bad has no experiment.toml."
    expect(page.locator(".whatif p").first).to_have_text(reason)


def test_a_damaged_log_is_shown_as_such_and_as_text(page: Page) -> None:
    page.goto("/run?name=bad")
    expect(page.locator(".warnings")).to_contain_text("The log is damaged")
    expect(page.locator(".title .pill")).to_have_text("damaged")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")  # what nobody sees is not drawn
    expect(page.locator(".fields", has_text="<img src=x")).to_be_visible()


def test_a_hostile_path_is_refused_in_words(page: Page) -> None:
    for name in ("../../etc", "/etc", "<img src=x onerror=alert(1)>", "..%2f.."):
        page.goto(f"/run?name={quote(name)}")
        expect(page.get_by_role("alert")).to_contain_text("This cannot be shown")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_nothing_is_wider_than_the_window(page: Page, width: int, colours: str) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.emulate_media(color_scheme="dark" if colours == "dark" else "light")
    for path in ("/", "/run?name=race/sd-feel", "/new", "/compare?run=race/sd-feel"):
        page.goto(path)
        expect(page.locator("main h1")).to_be_visible()
        expect(page.locator(".loading, .figures:empty")).to_have_count(0)  # all is there
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(wide) == 0
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(15, 19, 24)" if colours == "dark" else "rgb(244, 246, 248)")


def test_without_permission_there_is_nothing_to_start(browser: Browser, runs: Path) -> None:
    with served(runs) as address:
        page = patient(browser.new_page(base_url=address))
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


AXE = Path(__file__).parents[2] / "tools" / "js" / "node_modules" / "axe-core" / "axe.min.js"


@pytest.mark.skipif(not AXE.exists(), reason="no axe here: `make lint-js` installs it")
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_nothing_to_complain_about(browser: Browser, address: str, colours: str) -> None:
    dark = colours == "dark"
    context = browser.new_context(
        base_url=address, bypass_csp=True, color_scheme="dark" if dark else "light"
    )
    context.set_default_timeout(PATIENCE)
    page = patient(context.new_page())
    several = "/?group=folder&column=spread"
    for path in (several, "/run?name=race/sd-feel", "/compare?run=race/sd-feel&run=bad", "/new"):
        page.goto(path)
        ready = {several: "tr.group", "/new": "form"}.get(path, ".chart canvas")
        page.locator(ready).first.wait_for()
        for each in page.locator("details > summary").all():
            each.click()
        if path.startswith("/run"):
            page.locator(".whatif").scroll_into_view_if_needed()
            page.get_by_label("tau1", exact=True).press("End")
            page.get_by_role("columnheader", name="with your settings").wait_for()
            page.evaluate("scrollTo(0, document.body.scrollHeight)")  # until then it is not drawn
            page.locator(".fields").first.wait_for()
        page.evaluate(AXE.read_text())
        found = page.evaluate("axe.run()")["violations"]
        assert [(each["id"], each["nodes"][0]["html"][:200]) for each in found] == []
    context.close()
