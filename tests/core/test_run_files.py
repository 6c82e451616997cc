"""Files are there whole or not at all."""

import os
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.run_files import of_toml, remove_drafts, replacing, write_atomic


def test_a_failure_half_way_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    def fail() -> None:
        with replacing(tmp_path / "a") as file:
            file.write(b"ne")
            raise ValueError("half way")

    write_atomic(tmp_path / "a", b"old")
    with pytest.raises(ValueError, match="half way"):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_an_error_names_the_file_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device", str(source))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomic(tmp_path / "a", b"new")
    assert caught.value.filename == str(tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_drafts_of_a_killed_process_are_cleared_away(tmp_path: Path) -> None:
    (tmp_path / ".a.17.tmp").write_bytes(b"ne")
    write_atomic(tmp_path / "a", b"new", durable=False)
    remove_drafts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_nobody_else_can_read_a_private_file_even_while_it_is_written(tmp_path: Path) -> None:
    left = tmp_path / f".key.{os.getpid()}.tmp"  # by a killed process with the same number
    left.write_bytes(b"ne")
    left.chmod(0o644)
    with replacing(tmp_path / "key", private=True) as file:
        file.write(b"secret")
        assert left.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "key").read_bytes() == b"secret"


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_toml_or_one_sentence(content: bytes) -> None:
    found: object = None
    with suppress(ValueError):
        found = of_toml(content)
    if found is None:
        with pytest.raises(ValueError, match=r"\S") as caught:
            of_toml(content)
        assert "codec" not in str(caught.value)
    else:
        assert found == tomllib.loads(content.decode("utf-8-sig"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = 1\nb = 'caf\xe9'\n", "line 2 is not UTF-8 text"),
        ("seed = 1\n".encode("utf-16"), "line 1 is not UTF-8 text"),
        (b"a = " + b"[" * 5000 + b"]" * 5000, "nested too deeply"),
        (b"[" + b".".join([b"a"] * 3000) + b"]", "nested too deeply"),
        (b"a = " + b"[" * 150 + b"]" * 150, "nested too deeply"),
        (b"seed = " + b"9" * 6000, "thousands of digits"),
    ],
)
def test_what_no_editor_writes_is_refused_in_a_sentence(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        of_toml(content)


def test_files_of_editors_that_mark_them_are_read() -> None:
    assert of_toml(b"\xef\xbb\xbfseed = 1\r\n") == {"seed": 1}
