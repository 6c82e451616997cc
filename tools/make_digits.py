"""Write the embedded `digits` data set from scikit-learn's copy. Run it where scikit-learn is
installed.

    python tools/make_digits.py src/sdfeel/data/digits.npz

The split is stratified and fixed: 36 examples of each class for testing, the other 1,437 for
training, both in random order. The same scikit-learn data give the same file, byte for byte.
"""

import importlib
import io
import sys
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SEED = 1998  # the year in which the data were published
TEST_PER_CLASS = 36
Bytes = NDArray[np.uint8]


def split(labels: Bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of training and of test examples."""
    order = np.random.Generator(np.random.PCG64(SEED)).permutation(len(labels))
    test = np.concatenate([order[labels[order] == k][:TEST_PER_CLASS] for k in range(10)])
    is_test = np.isin(order, test)
    return order[~is_test], order[is_test]


def write(path: Path, arrays: dict[str, Bytes]) -> None:
    """Like np.savez_compressed, but without the time of day in it."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, array, allow_pickle=False)
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1998, 7, 1, 0, 0, 0))
            archive.writestr(member, content.getvalue(), zipfile.ZIP_DEFLATED, compresslevel=9)


def main(target: str) -> None:
    digits = importlib.import_module("sklearn.datasets").load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target.astype(np.uint8)
    train, test = split(labels)
    write(
        Path(target),
        {
            "x_train": images[train],
            "y_train": labels[train],
            "x_test": images[test],
            "y_test": labels[test],
        },
    )
    scaled = images[train] / 16
    print(f"{target}: {len(train)} + {len(test)} examples, {Path(target).stat().st_size} bytes")
    print(f"mean {scaled.mean():.4f}, standard deviation {scaled.std():.4f} (training, in [0, 1])")


if __name__ == "__main__":
    main(*sys.argv[1:])
