import string

import pytest

from fedacd.config import Config
from fedacd.data import NAMED

WANTED = {
    "digits": (0, False, 1e-5, "small-cnn"),
    "fashion-mnist": (2, True, 1e-5, "small-cnn"),
    "cifar10": (4, True, 1e-5, "cnn"),
    "cifar100": (4, True, 1e-5, "cnn"),
    "tiny-imagenet": (4, True, 1e-3, "resnet18"),
}


def test_names() -> None:
    assert set(NAMED) == set(WANTED)
    assert all(known.name == name for name, known in NAMED.items())


@pytest.mark.parametrize("name", WANTED)
def test_defaults_are_settings(name: str) -> None:
    filled = Config().fill(NAMED[name].defaults)
    assert (filled.data.crop, filled.data.flip, filled.train.weight_decay, filled.model.name) == WANTED[name]


def test_checksums_are_md5() -> None:
    checksums = [file.md5 for known in NAMED.values() for file in known.files]
    assert len(set(checksums)) == len(checksums) == 7
    assert all(len(checksum) == 32 and set(checksum) <= set(string.hexdigits.lower()) for checksum in checksums)
