"""Bring data sets into `root()`: from their official archives, from .npz files and from folders of images."""

import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedacd.data import cache, download
from fedacd.data.dataset import Dataset
from fedacd.data.download import Progress
from fedacd.data.named import NAMED, File, Named
from fedacd.data.sources import as_named, load, read_path
from fedacd.errors import DataError, unknown

# What reading a damaged archive raises; RuntimeError is zipfile's for what looks encrypted or of another version.
_DAMAGE = (OSError, EOFError, RuntimeError, zlib.error, tarfile.TarError, zipfile.BadZipFile)


def get(name: str, *, source: str | None = None, progress: Progress | None = None) -> Dataset:
    """Make the cache of an official data set and return the data set; one that is there already is just returned.

    `source` names another place for the archive: a file or the folder it is in, or the http(s) address of the file (of
    the folder, where there are several files). A file of one's own is left as it is. With a source, or if the cache is
    damaged, the cache is made anew. A download that was interrupted is resumed.
    """
    if name not in NAMED:
        raise DataError(unknown("data set", name, NAMED))
    known = NAMED[name]
    if not known.files:
        return load(name)
    if source is None and (present := _present(name)):
        return present
    report = progress or (lambda label, done, total: None)
    with _making(name):
        files = _archives(known, source, report)
        _convert(known, files, source, report)
        if source is None or download.is_address(source):
            for path in files:
                path.unlink()
    return load(name)


def import_data(source: str, *, name: str | None = None, size: int | None = None, test: float | None = None) -> Dataset:
    """Make a cache of an .npz file or of a folder of class folders, and return the data set.

    `name` is that of the file or folder if not given; nothing is overwritten. `size` brings the images of a folder to
    size x size. `test` splits a source without a test set: this part of every class is set aside, always the same.
    """
    if name is None:
        path = Path(source)
        name = path.stem if path.suffix == ".npz" else path.resolve().name
    cache.check_name(name)
    if isinstance(size, bool) or (size is not None and size < 1):
        raise DataError(f"size = {size}: must be a whole number, at least 1.")
    place = cache.root() / name
    with _making(name):
        if place.exists():
            raise DataError(f"{place} is there already, and nothing is overwritten: remove it first, or choose --name.")
        dataset = as_named(read_path(source, size, test), name, source)
        with cache.building(name) as folder:
            cache.write(folder, dataset, source if test is None else f"{source} (--test {test:g})")
    return load(name)


@contextmanager
def _making(name: str) -> Iterator[None]:
    try:
        with cache.lock(name):
            yield
    except OSError as error:
        raise DataError(f"cannot make the data set '{name}' in {cache.root()}: {error}.") from None


def _present(name: str) -> Dataset | None:
    try:
        return load(name)
    except DataError:
        return None


def _archives(known: Named, source: str | None, progress: Progress) -> list[Path]:
    """The official files, downloaded if need be and verified."""
    if source is None or download.is_address(source):
        return [_download(known, file, source, progress) for file in known.files]
    place = cache.user_path(source)
    paths = [place / file.name for file in known.files] if place.is_dir() else [place]
    if len(paths) != len(known.files):
        raise DataError(f"{place} must be a folder with {', '.join(file.name for file in known.files)}.")
    for path, file in zip(paths, known.files, strict=True):
        if not path.is_file():
            raise DataError(f"there is no file {path}: must be {file.name} of '{known.name}'.")
        if (actual := download.md5(path)) != file.md5:
            raise DataError(f"{path} is not the official {file.name}: its md5 is {actual}, must be {file.md5}.")
    return paths


def _download(known: Named, file: File, source: str | None, progress: Progress) -> Path:
    """The official file in downloads/, under its own name only when it is whole."""
    folder = cache.root() / "downloads"
    folder.mkdir(parents=True, exist_ok=True)
    path, part = folder / file.name, folder / f"{file.name}.part"
    base = source if source is not None else known.address
    url = base if source is not None and len(known.files) == 1 else f"{base.rstrip('/')}/{file.name}"
    if not path.exists():
        try:
            download.fetch(url, part, progress)
        except DataError as error:
            raise DataError(f"{error} {_by_hand(known)}") from None
        part.rename(path)
    if (actual := download.md5(path)) != file.md5:
        path.unlink()
        raise DataError(f"{url}: the md5 is {actual}, must be {file.md5}; the file was removed.")
    return path


def _by_hand(known: Named) -> str:
    channels, height, width = known.shape
    names = " and ".join(file.name for file in known.files)
    return (
        f"Without a network, bring {names} here and give the path with --from, or put {cache.root() / known.name}.npz "
        f"there, with x_train and x_test, uint8 [N, {height}, {width}, {channels}], and y_train and y_test, labels 0 "
        f"to {known.num_classes - 1}."
    )


def _convert(known: Named, files: Sequence[Path], source: str | None, progress: Progress) -> None:
    """From archives to the cache. Damage that the checksum did not show ends here."""
    with cache.building(known.name) as folder:
        try:
            arrays = known.read(files, folder, progress)
        except _DAMAGE as error:
            raise DataError(f"cannot convert {', '.join(str(path) for path in files)}: {error}.") from None
        dataset = Dataset.from_arrays(**arrays._asdict(), name=known.name, defaults=known.defaults)
        known.check(dataset, files[0].name)
        cache.write(folder, dataset, source or known.address)
