"""Who is let in, and from where."""

from pathlib import Path

import pytest

from tests.dashboard.conftest import ORIGIN, Page
from tests.dashboard.logs import events, write


def secret_of(client: object) -> str:
    return str(client.get("/api/about").json()["secret"])  # type: ignore[attr-defined]


def test_nothing_may_be_loaded_from_outside(page: Page) -> None:
    for path in ("/", "/api/about", "/static/main.js", "/nowhere"):
        headers = page().get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self' 'sha256-")
        assert policy.partition("style-src")[0].count("'sha256-") == 1  # one script in the page
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_the_pages_own_files_name_no_other_host(page: Page) -> None:
    client = page()
    for name in ("index.html", "main.js", "run.js", "chart.js", "style.css"):
        text = client.get(f"/static/{name}").text
        assert "://" not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "10.0.0.1:80"])
def test_on_loopback_only_loopbacks_names_are_answered(page: Page, host: str) -> None:
    assert page().get("/api/about", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "[::1]:9"])
def test_loopbacks_names_are_answered(page: Page, host: str) -> None:
    assert page().get("/api/about", headers={"host": host}).status_code == 200


def test_elsewhere_everything_needs_the_token(page: Page, tmp_path: Path) -> None:
    write(tmp_path / "one", events())
    client = page(token="open sesame", allow_start=True)
    paths = ["/", "/api/about", "/api/run?name=one", "/api/stream", "/static/main.js"]
    for path in [*paths, "/file?name=one&file=events.jsonl", "/?token=wrong", "/?token="]:
        assert client.get(path).status_code == 401
    assert client.post("/api/stop", json={"name": "one"}).status_code == 401
    told = client.get("/api/about", headers={"authorization": "Bearer open sesame"})
    assert told.status_code == 200


def test_the_token_in_the_address_becomes_a_cookie(page: Page) -> None:
    client = page(token="open-sesame")
    answer = client.get("/run?name=a%2Fb&token=open-sesame", follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/run?name=a%2Fb"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert client.get("/api/about").status_code == 200


def test_the_redirect_never_leads_to_another_host(page: Page) -> None:
    client = page(token="open-sesame")
    answer = client.get("//evil.example/?token=open-sesame", follow_redirects=False)
    assert not answer.headers["location"].startswith("//")


def test_without_permission_there_are_no_actions(page: Page) -> None:
    client = page()
    assert client.get("/api/about").json()["secret"] is None
    for path in ("/api/start", "/api/stop", "/api/resume"):
        assert client.post(path, json={}, headers={"origin": ORIGIN}).status_code in (403, 404)
    assert client.get("/api/form").status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:81"},
        {"origin": ORIGIN, "sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_actions_are_for_our_own_page_only(page: Page, headers: dict[str, str]) -> None:
    client = page(allow_start=True)
    told = {**headers, "x-sdfeel-secret": secret_of(client)}
    assert client.post("/api/stop", json={"name": "x"}, headers=told).status_code == 403


@pytest.mark.parametrize("secret", [{}, {"x-sdfeel-secret": ""}, {"x-sdfeel-secret": "guess"}])
def test_actions_need_the_pages_secret(page: Page, secret: dict[str, str]) -> None:
    client = page(allow_start=True)
    told = {"origin": ORIGIN, **secret}
    assert client.post("/api/stop", json={"name": "x"}, headers=told).status_code == 403


def test_our_own_page_may_act(page: Page) -> None:
    client = page(allow_start=True)
    told = {"origin": ORIGIN, "x-sdfeel-secret": secret_of(client)}
    answer = client.post("/api/stop", json={"name": "x"}, headers=told)
    assert answer.status_code == 400
    assert "was not started from this page" in answer.json()["error"]


def test_what_only_toml_can_say_is_shown(page: Page, tmp_path: Path) -> None:
    write(tmp_path / "one", events())
    (tmp_path / "one" / "experiment.toml").write_text("seed = 1979-05-27T07:32:00Z\n")
    assert page().get("/api/experiment?name=one").status_code in (200, 400)
