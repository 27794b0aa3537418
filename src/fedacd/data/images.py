"""Image files to arrays, by Pillow."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import numpy as np

from fedacd.data.dataset import Images
from fedacd.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".ppm", ".tif", ".tiff", ".gif"})

_GREY = ("1", "L", "LA", "La")
_DEEP = ("I", "F")  # more than 8 bits a pixel; also I;16 and its kin


def probe(file: str | IO[bytes], label: str) -> tuple[tuple[int, int], bool]:
    """Size (width, height) of an image and whether it is grey, from its header alone."""
    with _opened(file, label) as image:
        if image.mode.startswith(_DEEP):
            raise DataError(f"the image {label} has more than 8 bits a channel (mode {image.mode}): make it 8.")
        return image.size, image.mode in _GREY


def pixels(file: str | IO[bytes], label: str, channels: int, size: tuple[int, int], *, resize: bool = False) -> Images:
    """[H, W, channels] of an image of that size (width, height), or brought to it; transparency is dropped."""
    with _opened(file, label) as image:
        from PIL.Image import Resampling

        plain = image.convert("L" if channels == 1 else "RGB")
        if resize:
            plain = plain.resize(size, Resampling.BILINEAR)
        if plain.size != size:
            raise DataError(f"the image {label} is {shown(plain.size)}: must be {shown(size)}.")
        return np.asarray(plain, np.uint8).reshape(size[1], size[0], channels)


def shown(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


@contextmanager
def _opened(file: str | IO[bytes], label: str) -> "Iterator[Image.Image]":
    try:
        from PIL import Image
    except ImportError:
        raise DataError("reading image files needs Pillow: pip install pillow.") from None
    try:
        with Image.open(file) as image:
            yield image
    except DataError:
        raise
    except Exception as error:  # Pillow's decoders raise all sorts on damaged files
        raise DataError(f"cannot read the image {label}: {error}.") from None


def fill(target: Images, one: Callable[[int], Images], report: Callable[[int], None] | None = None) -> None:
    """target[i] = one(i) for every i, on all cores. `report` is told how many are done."""

    def put(index: int) -> None:
        target[index] = one(index)

    # Decoders let go of the interpreter lock: twice as fast for photographs on two cores, no slower for 64x64.
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for start in range(0, len(target), 1000):
            stop = min(start + 1000, len(target))
            for _ in pool.map(put, range(start, stop)):
                pass
            if report is not None:
                report(stop)
