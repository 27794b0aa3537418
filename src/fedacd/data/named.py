"""The data sets known by name: where their archives are, how to read them and what a run on them wants."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fedacd.data.cifar import CIFAR10, CIFAR100, read_cifar
from fedacd.data.dataset import Arrays, Dataset
from fedacd.data.digits import read_digits
from fedacd.data.download import Progress
from fedacd.data.fashion_mnist import read_fashion_mnist
from fedacd.data.tiny_imagenet import read_tiny_imagenet
from fedacd.errors import DataError

Reader = Callable[[Sequence[Path], Path, Progress], Arrays]
"""Takes the archives, a folder to put large arrays in, and whom to tell; what it cannot read is a DataError."""


@dataclass(frozen=True, kw_only=True)
class File:
    """An official file, by its name under the data set's address."""

    name: str
    md5: str
    size: int
    """Bytes, for the listing."""


@dataclass(frozen=True, kw_only=True)
class Named:
    """A data set known by name."""

    name: str
    what: str
    """One line for the listing."""
    num_classes: int
    shape: tuple[int, int, int]
    """(channels, height, width)"""
    num_train: int
    num_test: int
    defaults: Mapping[str, object]
    read: Reader
    address: str = ""
    """What the names of the files are appended to."""
    files: tuple[File, ...] = field(default=())
    """None for a data set that needs no download."""

    def check(self, dataset: Dataset, label: str) -> None:
        """Refuse data that cannot be this data set: another number of classes or another shape."""
        if (dataset.num_classes, dataset.shape) != (self.num_classes, self.shape):
            raise DataError(
                f"{label} has {dataset.num_classes} classes and images (channels, height, width) {dataset.shape}: "
                f"'{self.name}' has {self.num_classes} and {self.shape}."
            )


def _wants(model: str, *, crop: int, flip: bool, weight_decay: float = 1e-5) -> dict[str, object]:
    return {"data.crop": crop, "data.flip": flip, "train.weight_decay": weight_decay, "model.name": model}


def _digits(files: Sequence[Path], folder: Path, progress: Progress) -> Arrays:
    return read_digits()


_ALL = (
    Named(
        name="digits",
        what="handwritten digits of scikit-learn, split 80/20; no download",
        num_classes=10,
        shape=(1, 8, 8),
        num_train=1438,
        num_test=359,
        defaults=_wants("small-cnn", crop=0, flip=False),
        read=_digits,
    ),
    Named(
        name="fashion-mnist",
        what="pictures of clothes, grey",
        num_classes=10,
        shape=(1, 28, 28),
        num_train=60_000,
        num_test=10_000,
        defaults=_wants("small-cnn", crop=2, flip=True),
        read=read_fashion_mnist,
        address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        files=(
            File(name="train-images-idx3-ubyte.gz", md5="8d4fb7e6c68d591d4c3dfef9ec88bf0d", size=26_421_880),
            File(name="train-labels-idx1-ubyte.gz", md5="25c81989df183df01b3e8a0aad5dffbe", size=29_515),
            File(name="t10k-images-idx3-ubyte.gz", md5="bef4ecab320f06d8554ea6380940ec79", size=4_422_102),
            File(name="t10k-labels-idx1-ubyte.gz", md5="bb300cfdad3c16e7a12a480ee83cd310", size=5_148),
        ),
    ),
    Named(
        name="cifar10",
        what="photographs of animals and vehicles",
        num_classes=10,
        shape=(3, 32, 32),
        num_train=50_000,
        num_test=10_000,
        defaults=_wants("cnn", crop=4, flip=True),
        read=partial(read_cifar, CIFAR10),
        address="https://www.cs.toronto.edu/~kriz/",
        files=(File(name="cifar-10-python.tar.gz", md5="c58f30108f718f92721af3b95e74349a", size=170_498_071),),
    ),
    Named(
        name="cifar100",
        what="photographs, the 100 fine classes",
        num_classes=100,
        shape=(3, 32, 32),
        num_train=50_000,
        num_test=10_000,
        defaults=_wants("cnn", crop=4, flip=True),
        read=partial(read_cifar, CIFAR100),
        address="https://www.cs.toronto.edu/~kriz/",
        files=(File(name="cifar-100-python.tar.gz", md5="eb9058c3a382ffc7106e4002c42a8d85", size=169_001_437),),
    ),
    Named(
        name="tiny-imagenet",
        what="200 classes of ImageNet; the test set is the official val split",
        num_classes=200,
        shape=(3, 64, 64),
        num_train=100_000,
        num_test=10_000,
        defaults=_wants("resnet18", crop=4, flip=True, weight_decay=1e-3),
        read=read_tiny_imagenet,
        address="http://cs231n.stanford.edu/",
        files=(File(name="tiny-imagenet-200.zip", md5="90528d7ca1a48142e341f4ef8d21d0de", size=248_100_043),),
    ),
)

NAMED: dict[str, Named] = {entry.name: entry for entry in _ALL}
