"""A folder of class folders: train/CLASS/*.png and test/CLASS/*.png (or val/), with the usual kinds of image files.

Without a test set it can be split: then train/CLASS/*.png is enough, or CLASS/*.png. So it is for a client's share.
"""

import shlex
from pathlib import Path

import numpy as np

from fedacd.data import images
from fedacd.data.dataset import Dataset, Images
from fedacd.data.split import stratified
from fedacd.errors import DataError

_LAYOUT = "must hold train/CLASS/IMAGE and test/CLASS/IMAGE (or val/ for test/)"
_TEST = ("test", "val")


def read_folder(folder: Path, size: int | None = None, test: float | None = None, *, share: bool = False) -> Dataset:
    """The data set in a folder; it takes the folder's name, and its classes are sorted by name.

    All images must have one size, or are brought to `size` x `size`. The result is grey if every image is. `test` is
    the part of every class that is set aside as the test set. Of a client's `share` class folders may be empty; where
    it has no test set all of it is for training.
    """
    whole = share and not _has_test(folder)
    train = _part(folder, "train") if test is None and not whole else _undivided(folder)
    class_names = _classes(train)
    train_files, y_train = _files(train, class_names)
    empty = sorted(set(range(len(class_names))) - set(y_train))
    if empty and (not share or not train_files):
        raise DataError(f"{train / class_names[empty[0]]} holds no image ({_suffixes()}).")
    if share:
        test_files, y_test = ([], []) if whole else _files(_part(folder, *_TEST), class_names)
    elif test is None:
        test_files, y_test = _test(_part(folder, *_TEST), train, class_names)
    else:
        both = list(zip(train_files, y_train, stratified(np.array(y_train), test), strict=True))
        train_files, y_train = [file for file, _, tests in both if not tests], [y for _, y, tests in both if not tests]
        test_files, y_test = [file for file, _, tests in both if tests], [y for _, y, tests in both if tests]
    shape, channels = _common(train_files + test_files, size)
    return Dataset.from_arrays(
        _decode(train_files, channels, shape, resize=size is not None),
        y_train,
        _decode(test_files, channels, shape, resize=size is not None) if test_files else None,
        y_test if test_files else None,
        class_names=class_names,
        name=folder.resolve().name,
        share=share,
    )


def _test(part: Path, train: Path, class_names: list[str]) -> tuple[list[Path], list[int]]:
    if extra := sorted(set(_classes(part)) - set(class_names)):
        raise DataError(f"{part / extra[0]} is a class that {train} lacks: every class must be in train.")
    files, y = _files(part, class_names)
    if not files:
        raise DataError(f"{part} holds no image ({_suffixes()}).")
    return files, y


def _has_test(folder: Path) -> bool:
    return any((folder / name).is_dir() for name in _TEST)


def _undivided(folder: Path) -> Path:
    """Where the class folders are in a folder without a test set."""
    for name in _TEST:
        if (folder / name).is_dir():
            raise DataError(f"{folder / name} is a test set already: leave --test out.")
    return folder / "train" if (folder / "train").is_dir() else folder


def _suffixes() -> str:
    return ", ".join(sorted(images.SUFFIXES))


def _part(folder: Path, *candidates: str) -> Path:
    for name in candidates:
        if (folder / name).is_dir():
            return folder / name
    raise DataError(
        f"{folder} has no folder {' or '.join(candidates)}: {_LAYOUT}. Without a test set, `fedacd data import "
        f"{shlex.quote(str(folder))} --test 0.2` sets one aside from CLASS/IMAGE or train/CLASS/IMAGE."
    )


def _classes(part: Path) -> list[str]:
    names = sorted(path.name for path in part.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise DataError(f"{part} has no class folders: must hold CLASS/IMAGE.")
    return names


def _files(part: Path, class_names: list[str]) -> tuple[list[Path], list[int]]:
    """Every image of a part, class by class, with its label."""
    found = [
        (path, label)
        for label, name in enumerate(class_names)
        if (part / name).is_dir()
        for path in sorted((part / name).iterdir())
        if path.suffix.lower() in images.SUFFIXES and not path.name.startswith(".")
    ]
    return [path for path, _ in found], [label for _, label in found]


def _common(files: list[Path], size: int | None) -> tuple[tuple[int, int], int]:
    """Size (width, height) and number of channels that all images share, from their headers."""
    probed = [images.probe(str(path), str(path)) for path in files]
    channels = 1 if all(grey for _, grey in probed) else 3
    if size is not None:
        return (size, size), channels
    first, _ = probed[0]
    for path, (shape, _) in zip(files, probed, strict=True):
        if shape != first:
            raise DataError(
                f"images differ in size: {files[0]} is {images.shown(first)}, {path} is {images.shown(shape)}; "
                "bring them to one size with `fedacd data import FOLDER --size N`."
            )
    return first, channels


def _decode(files: list[Path], channels: int, size: tuple[int, int], *, resize: bool) -> Images:
    x = np.empty((len(files), size[1], size[0], channels), np.uint8)

    def one(index: int) -> Images:
        return images.pixels(str(files[index]), str(files[index]), channels, size, resize=resize)

    images.fill(x, one)
    return x
