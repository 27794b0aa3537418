"""import_data: what it makes of files and folders, and what it never does."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedacd.data import cache, import_data, load
from fedacd.errors import DataError

from .archives import Sample
from .conftest import visible

SAMPLE = Sample(20, 6, 32, 3, num_classes=10)


@pytest.fixture
def npz(tmp_path: Path) -> str:
    (tmp_path / "mine.npz").write_bytes(SAMPLE.npz())
    return str(tmp_path / "mine.npz")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    for number, (part, name) in enumerate(itertools.product(("train", "test"), ("cat", "dog"))):
        (tmp_path / "pets" / part / name).mkdir(parents=True)
        Image.new("RGB", (6 + number, 4), (number, 0, 0)).save(tmp_path / "pets" / part / name / "0.png")
    return str(tmp_path / "pets")


def test_npz(npz: str) -> None:
    dataset = import_data(npz)
    assert SAMPLE.same(dataset)
    assert dataset.name == "mine"
    assert isinstance(load("mine").x_train.base, np.memmap)
    assert load("mine").fingerprint == load(npz).fingerprint
    assert cache.read_meta("mine")["source"] == npz


def test_folder(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = import_data(folder, size=5)
    assert dataset.name == "pets"
    assert dataset.shape == (3, 5, 5)
    assert load("pets").class_names == ("cat", "dog")
    monkeypatch.chdir(folder)
    with pytest.raises(DataError, match="pets is there already"):  # '.' has a name, too
        import_data(".", size=5)


def test_unequal_sizes(folder: str, root: Path) -> None:
    with pytest.raises(DataError, match="images differ in size"):
        import_data(folder)
    assert visible(root) == []


def test_under_another_name(npz: str) -> None:
    assert import_data(npz, name="other").name == load("other").name == "other"


def test_nothing_is_overwritten(npz: str, root: Path) -> None:
    import_data(npz)
    before = (root / "mine" / "meta.json").stat()
    with pytest.raises(DataError, match="mine is there already, and nothing is overwritten: remove it first"):
        import_data(npz)
    assert (root / "mine" / "meta.json").stat() == before


@pytest.mark.parametrize("name", ["a b", "../up", "digits", ""])
def test_names(npz: str, name: str) -> None:
    with pytest.raises(DataError, match=f"'{name}' cannot be the name"):
        import_data(npz, name=name)


def test_official_name(npz: str) -> None:
    dataset = import_data(npz, name="cifar10")
    assert dataset.defaults == load("cifar10").defaults
    assert dataset.defaults["data.crop"] == 4


def test_official_name_that_does_not_fit(npz: str, root: Path) -> None:
    with pytest.raises(DataError, match=r"mine\.npz has 10 classes .* 'cifar100' has 100 and \(3, 32, 32\)"):
        import_data(npz, name="cifar100")
    assert visible(root) == []


def test_name_that_is_too_long(npz: str) -> None:
    with pytest.raises(DataError, match="too long"):
        import_data(npz, name="x" * 5000)


@pytest.mark.parametrize("size", [0, -3, True])
def test_size(folder: str, size: int) -> None:
    with pytest.raises(DataError, match=f"size = {size}: must be a whole number, at least 1"):
        import_data(folder, size=size)


def test_size_of_an_npz(npz: str) -> None:
    with pytest.raises(DataError, match="only the images of a folder"):
        import_data(npz, size=8)


def test_neither_file_nor_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file or folder"):
        import_data(str(tmp_path / "absent"))
    (tmp_path / "images.rar").write_bytes(b"")
    with pytest.raises(DataError, match=r"images\.rar is neither an \.npz file nor a folder"):
        import_data(str(tmp_path / "images.rar"))
