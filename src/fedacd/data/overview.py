"""What data sets there are, and whether one is sound."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedacd.data import cache
from fedacd.data.dataset import Dataset, Labels
from fedacd.data.named import NAMED
from fedacd.data.sources import in_root, load
from fedacd.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A data set in the listing. None: not known, because it is damaged."""

    name: str
    what: str
    num_classes: int | None
    shape: str
    """Height x width x channels."""
    num_train: int | None
    num_test: int | None
    download: int
    """Bytes to download; 0 if none are needed."""
    present: bool
    where: str
    """The folder or file that holds it, or would; empty for what needs none."""


def listing() -> list[Entry]:
    """Every data set known by name, then those that were imported."""
    imported = [name for name in cache.names() if name not in NAMED]
    return [_known(name) for name in NAMED] + [_imported(name) for name in imported]


def _known(name: str) -> Entry:
    known = NAMED[name]
    npz = None if cache.exists(name) else in_root(name)
    return Entry(
        name=name,
        what=known.what,
        num_classes=known.num_classes,
        shape=_shown((*known.shape[1:], known.shape[0])),
        num_train=known.num_train,
        num_test=known.num_test,
        download=sum(file.size for file in known.files),
        present=not known.files or cache.exists(name) or npz is not None,
        where=str(npz or cache.root() / name) if known.files else "",
    )


def _imported(name: str) -> Entry:
    try:
        dataset = cache.open_cache(name)
        what = f"imported from {cache.read_meta(name)['source']}"
    except DataError:
        dataset, what = None, "damaged"
    return Entry(
        name=name,
        what=what,
        num_classes=dataset.num_classes if dataset else None,
        shape=_shown(dataset.x_train.shape[1:]) if dataset else "",
        num_train=len(dataset.y_train) if dataset else None,
        num_test=len(dataset.y_test) if dataset else None,
        download=0,
        present=dataset is not None,
        where=str(cache.root() / name),
    )


class Counts(NamedTuple):
    """How many samples the classes have."""

    total: int
    fewest: int
    most: int
    missing: tuple[str, ...]
    """Classes without a sample."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """What a thorough look at a data set found."""

    name: str
    source: str
    num_classes: int
    shape: tuple[int, int, int]
    """(channels, height, width)"""
    train: Counts
    test: Counts
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fingerprint: str

    def lines(self) -> list[str]:
        """The same for a reader."""
        channels, height, width = self.shape
        return [
            f"name         {self.name}",
            f"source       {self.source}",
            f"images       {_shown((height, width, channels))}",
            f"classes      {self.num_classes}",
            f"train        {_counted(self.train)}",
            f"test         {_counted(self.test)}",
            f"mean         {', '.join(f'{value:.4f}' for value in self.mean)}",
            f"std          {', '.join(f'{value:.4f}' for value in self.std)}",
            f"fingerprint  {self.fingerprint}",
        ]


def check(name: str) -> Check:
    """Read a data set through, and compare it with what was written down when its cache was made."""
    known = load(name)
    found = Dataset.from_arrays(
        known.x_train, known.y_train, known.x_test, known.y_test, class_names=known.class_names, name=known.name
    )
    if (found.fingerprint, found.mean, found.std) != (known.fingerprint, known.mean, known.std):
        raise DataError(
            f"the data set '{name}' is damaged: its fingerprint is {found.fingerprint}, but {known.fingerprint} was "
            f"written down; remove {cache.root() / name} and get or import it again."
        )
    return Check(
        name=found.name,
        source=_source(name),
        num_classes=found.num_classes,
        shape=found.shape,
        train=_counts(found.y_train, found.class_names),
        test=_counts(found.y_test, found.class_names),
        mean=found.mean,
        std=found.std,
        fingerprint=found.fingerprint,
    )


def _source(name: str) -> str:
    if name == "digits":
        return "scikit-learn"
    if cache.exists(name):
        return str(cache.read_meta(name)["source"])
    return str(in_root(name) or name)


def _counts(y: Labels, class_names: tuple[str, ...]) -> Counts:
    counts = np.bincount(y, minlength=len(class_names))
    missing = tuple(class_names[label] for label in np.flatnonzero(counts == 0))
    return Counts(len(y), int(counts.min()), int(counts.max()), missing)


def _counted(counts: Counts) -> str:
    each = str(counts.most) if counts.fewest == counts.most else f"{counts.fewest} to {counts.most}"
    missing = f"; none of {', '.join(counts.missing)}" if counts.missing else ""
    return f"{counts.total} images, {each} a class{missing}"


def _shown(shape: Sequence[int]) -> str:
    """Height x width x channels."""
    return "x".join(str(side) for side in shape)
