"""Fashion-MNIST from its four official files.

Han Xiao, Kashif Rasul, Roland Vollgraf: Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
Algorithms. 2017.
"""

import gzip
import math
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedacd.data.dataset import Arrays, Images
from fedacd.data.download import Progress
from fedacd.errors import DataError

_CLASS_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def read_fashion_mnist(files: Sequence[Path], folder: Path, progress: Progress) -> Arrays:
    """The arrays of train images, train labels, test images and test labels, given in this order."""
    arrays = []
    for done, (path, dimensions) in enumerate(zip(files, (3, 1, 3, 1), strict=True), start=1):
        arrays.append(_idx(path, dimensions))
        progress("convert", done, len(files))
    x_train, y_train, x_test, y_test = arrays
    return Arrays(x_train, y_train.astype(np.int64), x_test, y_test.astype(np.int64), _CLASS_NAMES)


def _idx(path: Path, dimensions: int) -> Images:
    """An IDX file: two zero bytes, 8 for uint8, the number of dimensions, their sizes (big-endian), the values."""
    data = gzip.decompress(path.read_bytes())
    start = 4 + 4 * dimensions
    if len(data) < start or data[:4] != bytes([0, 0, 8, dimensions]):
        raise DataError(f"{path} is not an IDX file of uint8 with {dimensions} dimensions.")
    shape = struct.unpack(f">{dimensions}I", data[4:start])
    if len(data) - start != math.prod(shape):
        raise DataError(f"{path} holds {len(data) - start} values instead of {math.prod(shape)}.")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
