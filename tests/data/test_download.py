"""Bringing a data set here: from a real web server on this machine, and from packages."""

import dataclasses
import gzip
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sdfeel.core.errors import DataError
from sdfeel.data import catalog, formats
from sdfeel.data.download import fetch, get, silent, to_file
from sdfeel.data.sources import Source
from tests.data.conftest import put
from tests.data.test_cifar import archive
from tests.waiting import joined

Small = tuple[Source, dict[str, bytes]]


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder; below /short/ it promises more than it sends, below /unsized/ nothing."""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        part, _, rest = self.path.lstrip("/").partition("/")
        if part not in ("short", "unsized"):
            return super().do_GET()
        content = (Path(self.directory) / rest).read_bytes()
        self.send_response(200)
        if part == "short":
            self.send_header("Content-Length", str(len(content)))
            content = content[: len(content) // 2]
        self.end_headers()
        self.wfile.write(content)
        return None


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """The address of a web server for `tmp_path / "site"`."""
    (tmp_path / "site").mkdir()
    handler = partial(Handler, directory=str(tmp_path / "site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        joined(thread)


def leftovers(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()] if directory.exists() else []


def test_files_are_downloaded_checked_and_reported(
    site: str, small_mnist: Small, tmp_path: Path
) -> None:
    source, contents = small_mnist
    put(tmp_path / "site", contents, packed=True)
    source = dataclasses.replace(source, addresses=(f"{site}nowhere/", site))
    calls: list[tuple[str, int, int | None]] = []

    folder = fetch(source, tmp_path / "data", lambda *call: calls.append(call))

    assert folder == tmp_path / "data" / "MNIST" / "raw"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == contents
    assert catalog.verify(source, tmp_path / "data") == folder
    assert [path for path in (tmp_path / "data").iterdir() if path.name != "MNIST"] == []
    stages = [stage for stage, _, _ in calls]
    assert stages[0] == f"{site}nowhere/ failed: HTTP Error 404: File not found"
    assert f"downloading {site}train-images-idx3-ubyte.gz" in stages
    total = sum(map(len, contents.values()))
    assert calls[-1] == ("checked t10k-labels-idx1-ubyte", total, total)


def test_what_is_here_and_intact_is_left_alone(small_mnist: Small, tmp_path: Path) -> None:
    source, contents = small_mnist
    put(tmp_path / "mnist", contents, packed=True)
    calls: list[str] = []
    assert fetch(source, tmp_path, lambda stage, *_: calls.append(stage)) == tmp_path / "mnist"
    assert calls == [f"MNIST is already in {tmp_path / 'mnist'}, and is intact"]


def test_a_damaged_copy_is_replaced(site: str, small_mnist: Small, tmp_path: Path) -> None:
    source, contents = small_mnist
    put(tmp_path / "site", contents, packed=True)
    put(tmp_path / "data" / "mnist", {name: b"damaged" for name in contents})
    source = dataclasses.replace(source, addresses=(site,))
    fetch(source, tmp_path / "data", silent)
    assert catalog.verify(source, tmp_path / "data") == tmp_path / "data" / "MNIST" / "raw"


@pytest.mark.parametrize(
    ("below", "damage", "reason"),
    [
        ("short/", None, "the connection broke after"),
        ("unsized/", "truncated", "cannot be unpacked"),
        ("", "truncated", "cannot be unpacked"),
        ("", "wrong", "is not the published file: its sha256 checksum"),
        ("", "bomb", "is larger than the"),
        ("", "huge", "more than the .* bytes that were expected"),
        ("absent/", None, "HTTP Error 404"),
    ],
)
def test_a_broken_download_leaves_nothing_behind(
    below: str, damage: str | None, reason: str, site: str, small_mnist: Small, tmp_path: Path
) -> None:
    source, contents = small_mnist
    put(tmp_path / "site", contents, packed=True)
    path = tmp_path / "site" / "t10k-images-idx3-ubyte.gz"
    content = contents["t10k-images-idx3-ubyte"]
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "wrong":
        path.write_bytes(gzip.compress(bytes(len(content))))
    elif damage == "bomb":
        path.write_bytes(gzip.compress(bytes(100 * len(content))))
    elif damage == "huge":
        path.write_bytes(bytes(2 * formats.compressed(len(content))))
    source = dataclasses.replace(source, addresses=(site + below,))
    with pytest.raises(DataError, match=f"cannot get MNIST .*{reason}"):
        fetch(source, tmp_path / "data", silent)
    assert leftovers(tmp_path / "data") == []


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="refused"):
        to_file("http://127.0.0.1:1/file", tmp_path / "file", 10, silent)


def test_cifar_is_downloaded_as_an_archive(site: str, small_cifar: Small, tmp_path: Path) -> None:
    source, contents = small_cifar
    archive(tmp_path / "site" / "c.tar.gz", "cifar-10-batches-bin", contents)
    source = dataclasses.replace(source, addresses=(f"{site}c.tar.gz",))
    folder = fetch(source, tmp_path / "data", silent)
    assert folder == tmp_path / "data" / "cifar-10-batches-bin"
    assert formats.find_cifar(source, tmp_path / "data") == folder
    assert catalog.verify(source, tmp_path / "data") == folder


def test_without_any_source_the_error_says_what_to_do(small_mnist: Small, tmp_path: Path) -> None:
    source, _ = small_mnist
    with pytest.raises(
        DataError, match=r"cannot get MNIST .*or put train-images-idx3-ubyte, .* into"
    ):
        fetch(source, tmp_path, silent)


def test_a_directory_that_cannot_be_made_is_named(small_mnist: Small, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot make the directory .*file: .*; choose another"):
        fetch(small_mnist[0], tmp_path / "file", silent)


def test_a_folder_that_cannot_be_written_is_named(
    site: str, small_mnist: Small, tmp_path: Path
) -> None:
    source, contents = small_mnist
    put(tmp_path / "site", contents, packed=True)
    put(tmp_path / "data", {"MNIST": b"in the way"})
    source = dataclasses.replace(source, addresses=(site,))
    with pytest.raises(DataError, match=r"cannot write to .*data"):
        fetch(source, tmp_path / "data", silent)
    assert leftovers(tmp_path / "data") == [tmp_path / "data" / "MNIST"]


def test_digits_need_no_fetching(tmp_path: Path) -> None:
    assert get("digits", tmp_path).name == "digits.npz"
    assert leftovers(tmp_path) == []


def test_real_mnist_is_recognised_before_any_download(real_data: Path) -> None:
    assert get("mnist", real_data) == formats.find_idx(catalog.known("mnist"), real_data)
