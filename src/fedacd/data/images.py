"""Image files to arrays, by Pillow."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, TypeVar

import numpy as np

from fedacd.data.dataset import Images
from fedacd.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

T = TypeVar("T")

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".ppm", ".tif", ".tiff", ".gif"})

_GREY = ("1", "L", "LA", "La")
_DEEP = ("I", "F")  # more than 8 bits a pixel; also I;16 and its kin


def probe(file: str | IO[bytes], label: str) -> tuple[tuple[int, int], bool]:
    """Size (width, height) of an image and whether it is grey, from its header alone."""

    def look(image: "Image.Image") -> tuple[tuple[int, int], bool]:
        if image.mode.startswith(_DEEP):
            raise DataError(f"the image {label} has more than 8 bits a channel (mode {image.mode}): make it 8.")
        return image.size, image.mode in _GREY

    return _with_image(file, label, look)


def pixels(file: str | IO[bytes], label: str, channels: int, size: tuple[int, int], *, resize: bool = False) -> Images:
    """[H, W, channels] of an image of that size (width, height), or brought to it; transparency is dropped."""

    def decode(image: "Image.Image") -> Images:
        from PIL import Image

        plain = image.convert("L" if channels == 1 else "RGB")
        if resize and plain.size != size:
            plain = plain.resize(size, Image.Resampling.BILINEAR)
        if plain.size != size:
            raise DataError(f"the image {label} is {shown(plain.size)}: must be {shown(size)}.")
        return np.asarray(plain, np.uint8).reshape(size[1], size[0], channels)

    return _with_image(file, label, decode)


def shown(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def _with_image(file: str | IO[bytes], label: str, use: "Callable[[Image.Image], T]") -> T:
    try:
        from PIL import Image
    except ImportError:
        raise DataError("reading image files needs Pillow: pip install pillow.") from None
    try:
        with Image.open(file) as image:
            return use(image)
    except DataError:
        raise
    except Exception as error:  # Pillow's decoders raise all sorts on damaged files
        raise DataError(f"cannot read the image {label}: {error}.") from None


def fill(target: Images, one: Callable[[int], Images], report: Callable[[int], None] | None = None) -> None:
    """target[i] = one(i) for every i, on all cores. `report` is told how many are done."""

    def put(index: int) -> None:
        target[index] = one(index)

    # Threads, because decoders let go of the interpreter lock.
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for start in range(0, len(target), 1000):
            stop = min(start + 1000, len(target))
            for _ in pool.map(put, range(start, stop)):
                pass
            if report is not None:
                report(stop)
