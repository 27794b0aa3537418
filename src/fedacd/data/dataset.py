"""A data set: images, labels, and what a run wants to know about them."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedacd.errors import DataError

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]

_BLOCK = 1 << 24  # bytes of pixels that are looked at together
_MOST_CLASSES = 1_000_000  # without class names, a larger label is taken for a mistake


class Arrays(NamedTuple):
    """What a source reads: not yet checked, and without statistics."""

    x_train: Images
    y_train: Labels | list[int]
    x_test: Images
    y_test: Labels | list[int]
    class_names: Sequence[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Images and labels of one classification task, train and test.

    `Dataset.from_arrays` makes one from arrays and checks them. All arrays are read-only, and the images may be
    memory-mapped: copy what is to be changed (`torch.tensor` does, `torch.from_numpy` does not).
    """

    name: str
    x_train: Images = field(repr=False)
    """[N, H, W, channels]"""
    y_train: Labels = field(repr=False)
    x_test: Images = field(repr=False)
    y_test: Labels = field(repr=False)
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    """Per channel, of x_train / 255."""
    std: tuple[float, ...]
    """Per channel, of x_train / 255; 1 for a constant channel, so that one can divide by it."""
    fingerprint: str
    """16 hex digits over shapes, labels and pixels, train and test; the order of the test set is left out of it."""
    defaults: Mapping[str, object]
    """Settings that this data set wants, as `section.key`."""

    @classmethod
    def from_arrays(
        cls,
        x_train: Any,
        y_train: Any,
        x_test: Any,
        y_test: Any,
        *,
        class_names: Iterable[str] | None = None,
        name: str = "arrays",
        defaults: Mapping[str, object] | None = None,
        share: bool = False,
    ) -> "Dataset":
        """Make one from arrays, tensors or lists: uint8 images [N, H, W, channels] or [N, H, W], labels 0 to C-1.

        The number of classes C is that of `class_names`, otherwise the largest label + 1, and then every label must
        occur. C must be 2 or more, and a class of the test set must be in train, too. None of this holds for a client's
        `share` of a data set, which may have no test set either: None for `x_test` and `y_test`. `defaults` go before
        those that the size of the images suggests. Nothing is copied that has the right form already.
        """
        train = _images(x_train, "x_train")
        test = train[:0] if share and x_test is None else _images(x_test, "x_test")
        if train.shape[1:] != test.shape[1:]:
            raise DataError(
                f"x_test holds images of {_size(test)}, x_train of {_size(train)}: "
                "height, width and channels must be the same."
            )
        names, labels, test_labels = _labelled(y_train, y_test, class_names, share)
        for which, x, y in (("train", train, labels), ("test", test, test_labels)):
            if len(x) != len(y):
                raise DataError(f"x_{which} has {len(x)} images but y_{which} has {len(y)} labels: must be as many.")
        mean, std = channel_statistics(train)
        return cls(
            name=name,
            x_train=train,
            y_train=labels,
            x_test=test,
            y_test=test_labels,
            class_names=names,
            mean=mean,
            std=std,
            fingerprint=_fingerprint(train, labels, test, test_labels),
            defaults=_generic_defaults(train) | dict(defaults or {}),
        )

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width), the order in which models take images."""
        height, width, channels = self.x_train.shape[1:]
        return channels, height, width


def numbered(num_classes: int) -> tuple[str, ...]:
    """The names that classes without names have."""
    return tuple(str(label) for label in range(num_classes))


def channel_statistics(x: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of x / 255 per channel, without rounding before the last step."""
    channels = x.shape[3]
    histogram = np.zeros((channels, 256), np.int64)
    for block in _blocks(x):
        pixels = block.reshape(-1, channels)
        for channel in range(channels):
            histogram[channel] += np.bincount(pixels[:, channel], minlength=256)
    values, count = np.arange(256), x.size // channels
    sums = [int(total) for total in histogram @ values]
    squares = [int(total) for total in histogram @ values**2]
    mean = tuple(total / (255 * count) for total in sums)
    # Python's integers do not overflow: count * square has up to 80 bits for a large data set.
    spread = (count * square - total * total for total, square in zip(sums, squares, strict=True))
    return mean, tuple(math.sqrt(s) / (255 * count) if s else 1.0 for s in spread)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view of the array that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view


def _fingerprint(x_train: Images, y_train: Labels, x_test: Images, y_test: Labels) -> str:
    """The order of the training set counts, since partitions and batches are drawn by it; that of the test set does
    not."""
    digest = hashlib.blake2b(repr(x_train.shape).encode(), digest_size=8)
    digest.update(y_train.astype("<i8").tobytes())
    for block in _blocks(x_train):
        digest.update(block.reshape(-1).data)
    digest.update(repr(x_test.shape).encode())
    labels = y_test.astype("<i8")
    for one in sorted(
        hashlib.blake2b(image.tobytes() + y.tobytes()).digest() for image, y in zip(x_test, labels, strict=True)
    ):
        digest.update(one)
    return digest.hexdigest()


def _blocks(x: Images) -> Iterator[Images]:
    """Consecutive parts of the images, small enough to be worked on one at a time."""
    step = max(1, _BLOCK // max(1, x[0].size))
    for start in range(0, len(x), step):
        yield x[start : start + step]


def _generic_defaults(x: Images) -> dict[str, object]:
    side = min(x.shape[1:3])
    model = "small-cnn" if side < 32 else "cnn" if side < 64 else "resnet18"
    return {"data.crop": 0, "data.flip": False, "train.weight_decay": 1e-5, "model.name": model}


def _array(value: Any, field_name: str) -> NDArray[Any]:
    """A plain numpy array from an array, a tensor on any device or a list."""
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{field_name} cannot be read as an array: {error}.") from None
    if array.dtype == object:
        raise DataError(f"{field_name} is an array of objects: must be numbers, and all images of one size.")
    return array


def _images(value: Any, field_name: str) -> Images:
    x = _array(value, field_name)
    if x.ndim not in (3, 4):
        raise DataError(f"{field_name} has shape {x.shape}: must be [N, H, W, channels] or [N, H, W].")
    if x.size == 0:
        raise DataError(f"{field_name} is empty (shape {x.shape}): must hold at least one image.")
    if x.dtype != np.uint8:
        floating = np.issubdtype(x.dtype, np.floating)
        how = "for values from 0 to 1 give (x * 255).round().astype(np.uint8)" if floating else "give values 0 to 255"
        raise DataError(f"{field_name} has dtype {x.dtype}: must be uint8; {how}.")
    if x.ndim == 3:
        x = x[..., None]
    elif x.shape[1] in (1, 3) and x.shape[3] not in (1, 3):
        raise DataError(
            f"{field_name} has shape {x.shape}, which looks like channels first: "
            "must be [N, H, W, channels]; give x.transpose(0, 2, 3, 1)."
        )
    return read_only(np.ascontiguousarray(x))


def _labels(value: Any, field_name: str) -> NDArray[Any]:
    y = _array(value, field_name)
    if y.ndim != 1:
        raise DataError(f"{field_name} has shape {y.shape}: must be [N], one label per image.")
    if y.size == 0:
        raise DataError(f"{field_name} is empty: must hold at least one label.")
    if not np.issubdtype(y.dtype, np.integer):
        raise DataError(f"{field_name} has dtype {y.dtype}: must be whole numbers, such as int64.")
    return y


def _labelled(
    y_train: Any, y_test: Any, class_names: Iterable[str] | None, share: bool
) -> tuple[tuple[str, ...], Labels, Labels]:
    """The class names and both arrays of labels, which fit each other."""
    train = _labels(y_train, "y_train")
    test = train[:0] if share and y_test is None else _labels(y_test, "y_test")
    if isinstance(class_names, str):
        raise DataError(f"class_names = {class_names!r}: must be a list of names, one per class.")
    names = None if class_names is None else tuple(_text(name) for name in class_names)
    if names is not None and len(names) < (1 if share else 2):
        raise DataError(f"class_names = {list(names)}: must be {'1 name' if share else '2 names'} or more.")
    limit = max(int(y.max()) for y in (train, test) if y.size) + 1 if names is None else len(names)
    why = "" if names is None else f", since class_names has {len(names)} names"
    check_labels(train, "y_train", min(limit, _MOST_CLASSES), why)
    check_labels(test, "y_test", min(limit, _MOST_CLASSES), why)
    if limit < 2 and not share:
        raise DataError("all labels are 0: there must be 2 classes or more.")
    train, test = train.astype(np.int64), test.astype(np.int64)
    if not share:
        _check_classes(train, test, limit, names)
    return names or numbered(limit), read_only(train), read_only(test)


def _check_classes(train: Labels, test: Labels, num_classes: int, names: tuple[str, ...] | None) -> None:
    """Refuse a class without an image that nobody has named, and one that only the test set has."""
    trained, tested = (np.bincount(y, minlength=num_classes) > 0 for y in (train, test))
    if names is None and (absent := np.flatnonzero(~(trained | tested))).size:
        raise DataError(
            f"no image has the label {absent[0]}: without class_names, labels must be 0 to C - 1 and each of them "
            "occur. Give class_names, or renumber train and test together: "
            "np.unique(np.concatenate([y_train, y_test]), return_inverse=True)[1]."
        )
    if (extra := np.flatnonzero(tested & ~trained)).size:
        label = int(extra[0])
        shown = f"{label} ('{names[label]}')" if names else str(label)
        raise DataError(f"y_test has the label {shown}, which y_train lacks: every class must be in train.")


def _text(name: object) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def check_labels(y: NDArray[Any], field_name: str, num_classes: int, why: str = "") -> None:
    """Refuse labels outside 0 to C-1, naming the first; `why` goes on after what is allowed."""
    wrong = np.flatnonzero((y < 0) | (y >= num_classes))
    if wrong.size:
        index = int(wrong[0])
        allowed = f"0 to {num_classes - 1}" if num_classes > 0 else "0 or more"
        raise DataError(f"{field_name}[{index}] = {y[index]}: labels must be {allowed}{why}.")


def _size(x: Images) -> str:
    return "x".join(str(side) for side in x.shape[1:])
