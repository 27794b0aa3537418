"""An .npz file with x_train, y_train, x_test, y_test and, if wanted, class_names.

Without a test set it can be split: then x_train and y_train are enough, or x and y. A client's share needs none.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedacd.data.dataset import Dataset
from fedacd.data.split import stratified
from fedacd.errors import DataError

_NEEDED = ("x_train", "y_train", "x_test", "y_test")
_TO_SPLIT = (("x_train", "y_train"), ("x", "y"))


def read_npz(path: Path, test: float | None = None, *, share: bool = False) -> Dataset:
    """The data set in a file; it takes the file's name. `test` is the part of every class that is set aside as such.

    A client's `share` may lack classes and a test set.
    """
    arrays = _read(path)
    if test is not None:
        arrays |= _split(arrays, path, test)
    needed = _NEEDED[:2] if share else _NEEDED
    if missing := [key for key in needed if key not in arrays]:
        cure = f" `fedacd data import {path} --test 0.2` sets a part aside as the test set."
        raise DataError(
            f"{path} lacks {', '.join(missing)}: must hold {', '.join(needed)}."
            + (cure if _pair(arrays) and not share else "")
        )
    class_names = arrays.get("class_names")
    if class_names is not None and class_names.ndim != 1:
        raise DataError(f"{path}: class_names has shape {class_names.shape}: must be [C], one name per class.")
    try:
        return Dataset.from_arrays(
            *(arrays.get(key) for key in _NEEDED), class_names=class_names, name=path.stem, share=share
        )
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _pair(arrays: Mapping[str, NDArray[Any]]) -> tuple[str, str] | None:
    """The names of images and labels that can be split."""
    if "x_test" in arrays or "y_test" in arrays:
        return None
    return next((pair for pair in _TO_SPLIT if arrays.keys() >= set(pair)), None)


def _split(arrays: Mapping[str, NDArray[Any]], path: Path, test: float) -> dict[str, NDArray[Any]]:
    pair = _pair(arrays)
    if pair is None:
        raise DataError(
            f"{path} cannot be split by --test: must hold x and y, or x_train and y_train, and no test set."
        )
    x, y = (arrays[key] for key in pair)
    if y.ndim != 1 or x.shape[:1] != y.shape:
        raise DataError(
            f"{path}: {pair[0]} has shape {x.shape} and {pair[1]} {y.shape}: must be as many, [N, ...] and [N]."
        )
    is_test = stratified(y, test)
    return {"x_train": x[~is_test], "y_train": y[~is_test], "x_test": x[is_test], "y_test": y[is_test]}


def _is_array(stream: BinaryIO) -> bool:
    stream.seek(0)
    return stream.read(6) == b"\x93NUMPY"


def _read(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as stream:
            if not zipfile.is_zipfile(stream) and not _is_array(stream):
                raise ValueError("it is not an .npz file, or it is cut short")
            stream.seek(0)
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.lib.npyio.NpzFile):
                return {key: _plain(file, key, path) for key in (*_NEEDED, "x", "y", "class_names") if key in file}
    except DataError:
        raise
    except Exception as error:  # zip, zlib and numpy's header parser each have errors of their own
        raise DataError(f"cannot read {path}: {error}.") from None
    raise DataError(f"{path} holds a single array: must be an .npz file with {', '.join(_NEEDED)}.")


def _plain(file: Mapping[str, NDArray[Any]], key: str, path: Path) -> NDArray[Any]:
    """An array of the file. Objects are pickles, which can run any program."""
    try:
        return file[key]
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        whole = "np.stack(images), all of one size and uint8" if key[0] == "x" else "np.array(labels, np.int64)"
        cure = "np.array(names, str)" if key == "class_names" else whole
        raise DataError(f"{path}: {key} is an array of objects, which is not read: save it as {cure}.") from None
