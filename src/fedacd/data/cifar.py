"""CIFAR-10 and CIFAR-100 from their official archives.

Alex Krizhevsky: Learning Multiple Layers of Features from Tiny Images. 2009.

The archives hold pickles, and a pickle can run any program. These are read by an unpickler that knows numpy arrays and
plain containers and refuses everything else.
"""

import io
import pickle
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from fedacd.data.dataset import Arrays, Images
from fedacd.data.download import Progress
from fedacd.errors import DataError


class _Dtype:
    """What a pickle says of an array's type."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        pass  # byte order and the like, which bytes do not have


class _Array:
    """An array of uint8 from a pickle. numpy's own classes trust a pickle, and a damaged one can crash them."""

    def __init__(self) -> None:
        self.values = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, is_fortran, raw = state
        if not isinstance(dtype, _Dtype) or dtype.code not in (b"u1", "u1"):
            raise DataError("the pickle holds an array that is not of uint8.")
        self.values = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if is_fortran else "C")


def _reconstruct(*_: object) -> _Array:
    return _Array()


_ADMITTED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,  # numpy 1
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,  # numpy 2
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise DataError(f"the pickle wants {module}.{name}: only numpy arrays and plain containers are admitted.")
        return _ADMITTED[module, name]


def unpickle(data: bytes, label: str) -> dict[bytes, Any]:
    """The dictionary in a pickle of Python 2 or 3; texts of Python 2 come as bytes."""
    try:
        content = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{label}: {error}") from None
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(f"cannot read {label}: {error}.") from None
    if not isinstance(content, dict):
        raise DataError(f"{label} holds a {type(content).__name__}: must be a dictionary.")
    return {
        key.encode() if isinstance(key, str) else key: value.values if isinstance(value, _Array) else value
        for key, value in content.items()
    }


class Layout(NamedTuple):
    """Names of the members of an archive and of the keys in their dictionaries."""

    train: tuple[str, ...]
    test: str
    meta: str
    labels: bytes
    class_names: bytes


CIFAR10 = Layout(tuple(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta", b"labels", b"label_names")
CIFAR100 = Layout(("train",), "test", "meta", b"fine_labels", b"fine_label_names")


def read_cifar(layout: Layout, files: Sequence[Path], folder: Path, progress: Progress) -> Arrays:
    """The arrays of an archive, read without unpacking it to disk."""
    (path,) = files
    wanted = (*layout.train, layout.test, layout.meta)
    found: dict[str, dict[bytes, Any]] = {}
    with tarfile.open(path, "r:gz") as archive:
        # In the order of the archive: going back would mean decompressing it again.
        for member in archive:
            name = PurePosixPath(member.name).name
            if name in wanted and member.isfile() and (file := archive.extractfile(member)) is not None:
                found[name] = unpickle(file.read(), f"{path}, {name}")
                progress("convert", len(found), len(wanted))
    if missing := [name for name in wanted if name not in found]:
        raise DataError(f"{path} lacks {', '.join(missing)}.")
    train = [found[name] for name in layout.train]
    return Arrays(
        np.concatenate([_images(batch, path) for batch in train]),
        [label for batch in train for label in _list(batch, layout.labels, path)],
        _images(found[layout.test], path),
        _list(found[layout.test], layout.labels, path),
        _list(found[layout.meta], layout.class_names, path),
    )


def _images(batch: dict[bytes, Any], path: Path) -> Images:
    rows = batch.get(b"data")
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != 3072:
        raise DataError(f"{path}: 'data' of a batch is not an array of uint8 [N, 3072].")
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _list(batch: dict[bytes, Any], key: bytes, path: Path) -> list[Any]:
    if not isinstance(batch.get(key), list):
        raise DataError(f"{path}: '{key.decode()}' is not a list.")
    return list(batch[key])
