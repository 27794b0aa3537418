"""From what a user writes to a data set: a known name, an imported one, an .npz file or a folder of class folders."""

import dataclasses
import os
from pathlib import Path

from fedacd.data import cache
from fedacd.data.dataset import Dataset
from fedacd.data.folder import read_folder
from fedacd.data.named import NAMED
from fedacd.data.npz import read_npz
from fedacd.errors import DataError, unknown


def load(name: str, *, share: bool = False) -> Dataset:
    """The data set of this name; nothing is downloaded.

    A name is looked up in `root()`: the cache NAME/, then the file NAME.npz. Everything else is the path of an .npz
    file or of a folder with train/CLASS/IMAGE and test/CLASS/IMAGE; write ./NAME for a folder that is called like a
    known data set. `share`: of a file or folder that is one client's share, which may lack classes and a test set.
    """
    try:
        return _find(name, share)
    except OSError as error:
        raise DataError(f"cannot read the data set '{name}': {error.strerror}.") from None


def _find(name: str, share: bool) -> Dataset:
    if name == "digits":
        return _digits()
    if cache.exists(name):
        return cache.open_cache(name)
    if npz := in_root(name):
        return as_named(read_npz(npz, share=share), name, str(npz))
    if name in NAMED:
        raise DataError(
            f"the data set '{name}' is not here (looked for {cache.root() / name} and {name}.npz beside it): "
            f"run `fedacd data get {name}`."
        )
    if name.endswith(".npz") or os.sep in name or name.startswith((".", "~")) or (name and Path(name).is_dir()):
        return read_path(name, share=share)
    raise DataError(unknown("data set", name, [*NAMED, *cache.names()]))


def read_path(source: str, size: int | None = None, test: float | None = None, *, share: bool = False) -> Dataset:
    """The data set in an .npz file or in a folder of class folders, whose images are then brought to `size`.

    `test` is the part of every class that is set aside as the test set of a source without one, and a client's `share`
    needs none.
    """
    path = cache.user_path(source)
    try:
        if path.is_dir():
            return read_folder(path, size, test, share=share)
        if not path.exists():
            raise DataError(f"there is no file or folder {source}: must be an .npz file or a folder of class folders.")
        if path.suffix != ".npz":
            raise DataError(f"{source} is neither an .npz file nor a folder of class folders.")
        if size is not None:
            raise DataError(f"size = {size} with {source}: only the images of a folder can be brought to another size.")
        return read_npz(path, test, share=share)
    except OSError as error:
        raise DataError(f"cannot read {source}: {error}.") from None


def in_root(name: str) -> Path | None:
    """root()/NAME.npz, if it is there."""
    path = cache.root() / f"{name}.npz"
    return path if name and os.sep not in name and path.is_file() else None


def as_named(dataset: Dataset, name: str, label: str) -> Dataset:
    """The same data under another name; under a known one they must fit it, and take its defaults."""
    if name not in NAMED:
        return dataclasses.replace(dataset, name=name)
    NAMED[name].check(dataset, label)
    return dataclasses.replace(dataset, name=name, defaults=NAMED[name].defaults)


def _digits() -> Dataset:
    known = NAMED["digits"]
    arrays = known.read((), Path(), lambda *_: None)
    return Dataset.from_arrays(**arrays._asdict(), name="digits", defaults=known.defaults)
