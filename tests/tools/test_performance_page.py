"""The command that measures for docs/performance.md, with steps made up."""

import json
import sys
from pathlib import Path

import pytest

from tests.tools import performance_page as page
from tests.tools.performance_tables import goals


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty file of measurements, and a page with two tables."""
    monkeypatch.setattr(page, "ROOT", tmp_path)
    monkeypatch.setattr(page, "KEPT", tmp_path / "measured.json")
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(page, "taken", lambda: 0.01)
    monkeypatch.setattr(page, "source", lambda: "cafe")
    page.KEPT.write_text("{}")
    blocks = (f"<!-- measured: {name} -->\nold\n<!-- end -->\n" for name in ("async", "memory"))
    page.PAGE.write_text("By hand.\n" + "".join(blocks))
    row = {"scheme": "sd-feel", "samples": 1234.0, "of_sd_feel": 1, "by_cpu": 1}
    (tmp_path / "fine.py").write_text(f"print('''{json.dumps([row])}''')")
    (tmp_path / "bad.py").write_text("raise SystemExit(3)")
    steps = {
        "memory": page.Step(("python bad.py --json",), 1),
        "async": page.Step(("python fine.py --turns 5 --json",), 1),
        "peers": page.Step(("python bad.py",), 1, usual=False),
    }
    monkeypatch.setattr(page, "STEPS", steps)
    return page.KEPT


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["performance_page", "--cpu", "A CPU", *options])
    return page.main()


def test_what_was_measured_is_kept_and_written_though_another_step_fails(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch) == 1
    assert "memory: FAILED, `python bad.py --json` ended with 3" in capsys.readouterr().out
    own = json.loads(kept.read_text())["async"]
    assert (own["cpu"], own["load"], own["source"]) == ("A CPU", "quiet", "cafe")
    text = page.PAGE.read_text()
    assert text.startswith("By hand.\n<!-- measured: async -->\n\n`python fine.py --turns 5`, ")
    assert "A CPU with " in text
    assert ", quiet:" in text
    assert "| sd-feel | 1,234 | 1.00 | 1.00 |\n\n<!-- end -->" in text
    assert "<!-- measured: memory -->\n\n*Not measured yet.*\n" in text


def test_a_step_is_measured_again_only_if_asked_for_or_the_code_has_changed(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch)
    capsys.readouterr()
    run(monkeypatch)
    said = capsys.readouterr().out
    assert "async: left out, it was measured with this code" in said
    assert "peers: left out, it takes long: --only peers" in said
    assert run(monkeypatch, "--only", "async") == 0
    assert "async: kept after" in capsys.readouterr().out
    monkeypatch.setattr(page, "source", lambda: "beef")
    run(monkeypatch)
    assert "async: kept after" in capsys.readouterr().out


def test_other_programs_are_told_of(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "taken", lambda: 0.63)
    assert run(monkeypatch, "--only", "async") == 0
    assert "other programs took 63% of the cores:" in page.PAGE.read_text()


def test_an_unknown_step_is_refused(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--only", "asink") == 2
    assert "unknown step 'asink' (known: memory, async, peers)" in capsys.readouterr().err


def test_a_goal_that_was_missed_is_called_so() -> None:
    works = ("mnist-cnn", "mlp", "lenet", "cifar-cnn", "evaluation")
    speeds = {"naive": 100, "loop": 90, "parallel": 180, "native": 1000}
    rows = [
        {
            "work": work,
            "way": way,
            "samples_per_second": speed,
            "of_loop": speed / 90,
            "of_needed": 0.57,
        }
        for work in works
        for way, speed in speeds.items()
    ]
    text = goals({"engines": {"rows": rows, "has": "avx512", "code": "avx512"}})
    assert "| goal | with AVX-512 |" in text
    assert "| MNIST CNN: native 8 times parallel | 5.6 times, missed |" in text
    assert "| MLP: native 4 times parallel | 5.6 times |" in text
    assert "| LeNet-5: 55 % needed | 57 % |" in text
    assert "| CIFAR CNN: 60 % needed | 57 %, missed |" in text
    assert "| parallel: 1.9 times loop on two cores | 2.0 to 2.0 times |" in text
