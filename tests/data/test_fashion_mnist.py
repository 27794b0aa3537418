import gzip
from pathlib import Path

import numpy as np
import pytest

from fedacd.data.fashion_mnist import read_fashion_mnist
from fedacd.errors import DataError

from . import archives
from .archives import Sample, idx

SAMPLE = Sample(6, 4, 28, 1, num_classes=10)


def write(folder: Path, **changes: bytes) -> list[Path]:
    files = archives.fashion_mnist(SAMPLE)
    for start, data in changes.items():
        files[next(name for name in files if name.startswith(start.replace("_", "-")))] = data
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in files]


def test_read(tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    arrays = read_fashion_mnist(write(tmp_path), tmp_path, lambda *seen: told.append(seen))
    assert np.array_equal(arrays.x_train, SAMPLE.x_train[..., 0])
    assert np.array_equal(arrays.x_test, SAMPLE.x_test[..., 0])
    assert np.array_equal(arrays.y_train, SAMPLE.y_train)
    assert np.array_equal(arrays.y_test, SAMPLE.y_test)
    assert len(arrays.class_names) == 10
    assert arrays.class_names[0] == "T-shirt/top"
    assert arrays.class_names[9] == "Ankle boot"
    assert told == [("convert", done, 4) for done in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gzip.compress(b""), "is not an IDX file of uint8 with 1 dimensions"),
        (idx(SAMPLE.x_train[..., 0]), "is not an IDX file of uint8 with 1 dimensions"),
        (gzip.compress(gzip.decompress(idx(np.zeros(4, np.uint8)))[:-1]), "holds 3 values instead of 4"),
        (gzip.compress(gzip.decompress(idx(np.zeros(4, np.uint8))) + b"0"), "holds 5 values instead of 4"),
    ],
    ids=["empty", "images", "short", "long"],
)
def test_not_such_a_file(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"t10k-labels-idx1-ubyte.gz {message}"):
        read_fashion_mnist(write(tmp_path, t10k_labels=data), tmp_path, lambda *_: None)
