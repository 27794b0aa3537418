"""Tiny-ImageNet from its official archive: 200 classes of ImageNet at 64x64. The test set is the official val split.

Ya Le, Xuan Yang: Tiny ImageNet Visual Recognition Challenge. Stanford CS231N, 2015.

Images are JPEG, and decoders differ in the last bit: the fingerprint is that of the decoder at hand.
"""

import io
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from fedacd.data import cache, images
from fedacd.data.dataset import Arrays, Images
from fedacd.data.download import Progress
from fedacd.errors import DataError

_TOP = "tiny-imagenet-200"
_SIDE = 64


def read_tiny_imagenet(files: Sequence[Path], folder: Path, progress: Progress) -> Arrays:
    """The arrays of the archive, in sorted order; the images are written to `folder` as they are decoded."""
    (path,) = files
    with zipfile.ZipFile(path) as archive:
        wnids = sorted(_text(archive, "wnids.txt", path).split())
        label_of = {wnid: label for label, wnid in enumerate(wnids)}
        train = _train(archive, label_of)
        test = _val(archive, label_of, path)
        if not train or not test:
            raise DataError(f"{path} holds {len(train)} train and {len(test)} val images: must hold both.")
        total = len(train) + len(test)
        x_train = _decode(archive, folder, "x_train", train, lambda done: progress("convert", done, total))
        x_test = _decode(archive, folder, "x_test", test, lambda done: progress("convert", len(train) + done, total))
        names = _class_names(_text(archive, "words.txt", path), wnids)
    return Arrays(x_train, [label for _, label in train], x_test, [label for _, label in test], names)


def _text(archive: zipfile.ZipFile, member: str, path: Path) -> str:
    try:
        return archive.read(f"{_TOP}/{member}").decode()
    except (KeyError, UnicodeDecodeError):
        raise DataError(f"{path} lacks {_TOP}/{member}, or it is not a text.") from None


def _train(archive: zipfile.ZipFile, label_of: dict[str, int]) -> list[tuple[str, int]]:
    """train/WNID/images/NAME.JPEG with their labels, sorted by class and name."""
    found = []
    for name in archive.namelist():
        match PurePosixPath(name).parts:
            case (top, "train", wnid, "images", file) if top == _TOP and wnid in label_of and file.endswith(".JPEG"):
                found.append((name, label_of[wnid]))
    return sorted(found, key=lambda pair: (pair[1], pair[0]))


def _val(archive: zipfile.ZipFile, label_of: dict[str, int], path: Path) -> list[tuple[str, int]]:
    """val/images/NAME.JPEG with the labels of val_annotations.txt, sorted by name."""
    present, found = set(archive.namelist()), []
    for line in _text(archive, "val/val_annotations.txt", path).splitlines():
        file, _, rest = line.partition("\t")
        wnid, name = rest.split("\t")[0], f"{_TOP}/val/images/{file}"
        if wnid not in label_of or name not in present:
            raise DataError(f"{path}: val_annotations.txt names {file} of class '{wnid}', and there is no such thing.")
        found.append((name, label_of[wnid]))
    return sorted(found)


def _decode(
    archive: zipfile.ZipFile,
    folder: Path,
    key: str,
    samples: Sequence[tuple[str, int]],
    report: Callable[[int], None],
) -> Images:
    x = cache.new_images(folder, key, (len(samples), _SIDE, _SIDE, 3))

    def one(index: int) -> Images:
        name, _ = samples[index]
        return images.pixels(io.BytesIO(archive.read(name)), name, 3, (_SIDE, _SIDE))

    images.fill(x, one, report)
    x.flush()
    return x


def _class_names(words: str, wnids: Sequence[str]) -> list[str]:
    """The first of the words for each class; where two classes share it, with the wnid."""
    entries = dict(line.split("\t", 1) for line in words.splitlines() if "\t" in line)
    firsts = [entries.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    shared = Counter(firsts)
    return [f"{first} ({wnid})" if shared[first] > 1 else first for first, wnid in zip(firsts, wnids, strict=True)]
