"""The folder of data sets, and the form they have in it.

    $FEDACD_DATA/NAME/x_train.npy ...   opened as memory maps, so that a data set loads in no time
                      meta.json         class names, statistics, fingerprint, source, defaults, shapes
                 NAME.npz               read where there is no folder NAME
                 downloads/             archives on their way

A cache appears whole or not at all: it is written beside its place and renamed.
"""

import contextlib
import errno
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedacd.data.dataset import Dataset, check_labels, read_only
from fedacd.errors import DataError
from fedacd.files import sync

ARRAYS = {"x_train": "uint8", "y_train": "int64", "x_test": "uint8", "y_test": "int64"}
_META = "meta.json"


def root() -> Path:
    """Where data sets are kept: $FEDACD_DATA, otherwise fedacd in the user's cache folder."""
    if chosen := os.environ.get("FEDACD_DATA"):
        return user_path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "fedacd"


def user_path(text: str) -> Path:
    """A path as a user writes it, ~ included."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise DataError(f"{text}: there is no such user.") from None


def check_name(name: str) -> None:
    """Refuse a name that cannot be a cache's: it would not be a folder of `root()`, or would be taken for a file."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
        raise DataError(
            f"'{name}' cannot be the name of a data set: letters, digits, '.', '_' and '-' are allowed, "
            "and the first must be a letter, a digit or '_'."
        )
    if name in ("digits", "downloads") or name.endswith(".npz"):
        raise DataError(f"'{name}' cannot be the name of a data set: it means something else.")


def exists(name: str) -> bool:
    """Whether there is a cache of this name, sound or not."""
    return os.sep not in name and (root() / name / _META).is_file()


def names() -> list[str]:
    """Every cache there is."""
    try:
        return sorted(path.name for path in root().iterdir() if exists(path.name))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise DataError(f"cannot look into {root()}: {error.strerror}.") from None


def read_meta(name: str) -> dict[str, Any]:
    """What meta.json says of a data set, every entry of the right type."""
    path = root() / name / _META
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        arrays, channels = meta["shapes"], len(meta["mean"])
        whole = (
            all(isinstance(meta[key], str) for key in ("name", "fingerprint", "source"))
            and all(isinstance(text, str) for text in meta["class_names"])
            and all(isinstance(value, float) and math.isfinite(value) for value in meta["mean"] + meta["std"])
            and isinstance(meta["defaults"], dict)
            and all(isinstance(side, int) for key in ARRAYS for side in arrays[key])
            and all(arrays[x][1:] == [*arrays["x_train"][1:3], channels] for x in ("x_train", "x_test"))
            and all(arrays[y] == arrays[x][:1] for x, y in (("x_train", "y_train"), ("x_test", "y_test")))
            and len(meta["std"]) == channels
            and len(meta["class_names"]) >= 2
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        whole = False
    if not whole:
        raise DataError(f"{path} is damaged: {_again(name)}")
    return dict(meta)


def open_cache(name: str) -> Dataset:
    """The data set of a cache. Its files must fit meta.json; the pixels themselves are not looked at."""
    meta = read_meta(name)
    arrays = {key: _open_array(name, key, tuple(meta["shapes"][key])) for key in ARRAYS}
    for key in ("y_train", "y_test"):
        arrays[key] = read_only(np.array(arrays[key]))
        try:
            check_labels(arrays[key], key, len(meta["class_names"]))
        except DataError as error:
            raise DataError(f"{root() / name / key}.npy is damaged: {error} {_again(name)}") from None
    return Dataset(
        name=name,
        x_train=arrays["x_train"],
        y_train=arrays["y_train"],
        x_test=arrays["x_test"],
        y_test=arrays["y_test"],
        class_names=tuple(meta["class_names"]),
        mean=tuple(meta["mean"]),
        std=tuple(meta["std"]),
        fingerprint=meta["fingerprint"],
        defaults=meta["defaults"],
    )


def _open_array(name: str, key: str, shape: tuple[int, ...]) -> NDArray[Any]:
    path = root() / name / f"{key}.npy"
    try:
        array = np.lib.format.open_memmap(path, mode="r")
        size = path.stat().st_size
    except Exception as error:  # a damaged header can make numpy's parser raise anything
        reason = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
        raise DataError(f"{path} {reason}: {_again(name)}") from None
    if array.shape != shape or array.dtype != ARRAYS[key] or not array.flags.c_contiguous:
        raise DataError(f"{path} is not the array of {ARRAYS[key]} {shape} that {_META} names: {_again(name)}")
    if size != array.offset + array.nbytes:
        raise DataError(f"{path} has {size} bytes instead of {array.offset + array.nbytes}: {_again(name)}")
    return np.asarray(array)


def _again(name: str) -> str:
    return (
        f"run `fedacd data get {name}` again; if it was imported, remove {root() / name} "
        "and run `fedacd data import` again."
    )


@contextlib.contextmanager
def lock(name: str) -> Iterator[None]:
    """Keep other processes from making the same cache at the same time."""
    import fcntl

    root().mkdir(parents=True, exist_ok=True)
    with (root() / f".{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"another process is making the data set '{name}': wait for it.") from None
        except OSError:
            pass  # a file system without locks
        yield


@contextlib.contextmanager
def building(name: str) -> Iterator[Path]:
    """A new folder that becomes the cache `name` when the block ends well, and vanishes when it does not.

    The caller holds `lock(name)`. A cache of that name is replaced; any other folder is left alone and refused.
    """
    place, new, old = root() / name, root() / f".{name}.tmp", root() / f".{name}.old"
    if place.exists() and not exists(name):
        raise DataError(f"{place} is there already and is not a data set of fedacd: move it, or set FEDACD_DATA.")
    for left_over in (new, old):  # of a process that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    new.mkdir()
    try:
        yield new
        sync(new)
        if place.exists():
            place.rename(old)
        new.rename(place)
        sync(root())
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def write(folder: Path, dataset: Dataset, source: str) -> None:
    """Put a data set into the folder of `building`; arrays that have been written there already stay as they are."""
    for key in ARRAYS:
        path = folder / f"{key}.npy"
        if not path.exists():
            np.save(path, getattr(dataset, key), allow_pickle=False)
        sync(path)
    meta: Mapping[str, object] = {
        "name": dataset.name,
        "class_names": dataset.class_names,
        "mean": dataset.mean,
        "std": dataset.std,
        "fingerprint": dataset.fingerprint,
        "source": source,
        "defaults": dict(dataset.defaults),
        "shapes": {key: getattr(dataset, key).shape for key in ARRAYS},
    }
    path = folder / _META
    path.write_text(json.dumps(meta, indent=1), encoding="utf-8")
    sync(path)


def new_images(folder: Path, key: str, shape: tuple[int, int, int, int]) -> "np.memmap[Any, np.dtype[np.uint8]]":
    """An array of images in the folder of `building`, which the caller fills and flushes."""
    path = folder / f"{key}.npy"
    array: np.memmap[Any, np.dtype[np.uint8]] = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
    if hasattr(os, "posix_fallocate"):
        # Without room on the disk, writing to a memory map kills the process; this raises OSError instead.
        with path.open("r+b") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system that cannot reserve room
                    raise
    return array
