"""get with archives whose checksum is right and whose content is not: an error in one line, and no half of a cache."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from fedacd.data import get
from fedacd.errors import DataError

from . import archives
from .archives import Sample
from .conftest import Register, visible

FILE = "cifar-10-python.tar.gz"


@pytest.mark.parametrize("name", ["cifar10", "tiny-imagenet", "fashion-mnist"])
def test_archives(name: str, register: Register, tmp_path: Path, root: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    whole = {
        "cifar10": {FILE: archives.cifar10(Sample(5, 2, 32, 3, num_classes=10))},
        "tiny-imagenet": {"tiny-imagenet-200.zip": archives.zipped(archives.tiny_imagenet())},
        "fashion-mnist": archives.fashion_mnist(Sample(5, 2, 28, 1, num_classes=10)),
    }[name]
    num_classes = 3 if name == "tiny-imagenet" else 10
    rng = np.random.default_rng(0)
    first = next(iter(whole))
    refused = 0
    for trial in range(80):
        data = bytearray(whole[first])
        place = int(rng.integers(len(data)))
        if trial % 2:
            data[place] ^= 1 << int(rng.integers(8))
        else:
            del data[place:]
        files = whole | {first: bytes(data)}
        register(name, files, num_classes=num_classes)
        for key, content in files.items():
            (folder / key).write_bytes(content)
        try:
            get(name, source=str(folder))
        except DataError as error:
            refused += 1
            assert "\n" not in str(error)
            assert visible(root) == []
        else:
            shutil.rmtree(root / name)
    assert refused >= 40


def test_a_pickle_with_a_command(register: Register, tmp_path: Path, root: Path) -> None:
    path, witness = tmp_path / FILE, tmp_path / "ran"
    command = b"\x80\x02cposix\nsystem\nX" + len(f"touch {witness}").to_bytes(4, "little")
    path.write_bytes(archives.tar_gz({"data_batch_1": command + f"touch {witness}".encode() + b"\x85R."}))
    register("cifar10", {FILE: path.read_bytes()})
    with pytest.raises(DataError, match=r"data_batch_1: the pickle wants posix\.system"):
        get("cifar10", source=str(path))
    assert not witness.exists()
    assert visible(root) == []


def test_another_data_set(register: Register, tmp_path: Path, root: Path) -> None:
    path = tmp_path / FILE
    path.write_bytes(archives.cifar10(Sample(20, 6, 32, 3, num_classes=7)))
    register("cifar10", {FILE: path.read_bytes()})
    with pytest.raises(DataError, match=r"has 7 classes .*: 'cifar10' has 10 and \(3, 32, 32\)"):
        get("cifar10", source=str(path))
    assert visible(root) == []
