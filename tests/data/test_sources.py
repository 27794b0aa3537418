from pathlib import Path

import numpy as np
import pytest

from fedacd.data import import_data, load
from fedacd.errors import DataError

from .archives import Sample
from .test_folder import put

SAMPLE = Sample(8, 4, 6, 3, num_classes=3)


@pytest.fixture
def npz(tmp_path: Path) -> str:
    (tmp_path / "mine.npz").write_bytes(SAMPLE.npz())
    return str(tmp_path / "mine.npz")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            put(tmp_path / "pets" / part / name / "0.png", (1, 2, 3))
    return tmp_path / "pets"


def test_npz(npz: str) -> None:
    assert SAMPLE.same(load(npz))
    assert load(npz).name == "mine"


def test_home_is_expanded(npz: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(Path(npz).parent))
    assert SAMPLE.same(load("~/mine.npz"))


def test_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(str(folder)).name == "pets"
    assert load(f"{folder}/").class_names == ("cat", "dog")
    monkeypatch.chdir(folder.parent)
    assert load("pets").name == load("./pets").name == "pets"
    monkeypatch.chdir(folder)
    assert load(".").name == "pets"


def test_a_share_may_be_a_folder_of_a_single_class_without_a_test_set(tmp_path: Path) -> None:
    put(tmp_path / "pets" / "cat" / "0.png", (1, 2, 3))
    assert load(str(tmp_path / "pets"), share=True).class_names == ("cat",)
    with pytest.raises(DataError, match="has no folder train"):
        load(str(tmp_path / "pets"))


def test_imported_goes_before_a_folder_of_that_name(npz: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_data(npz, name="pets")
    monkeypatch.chdir(folder.parent)
    assert load("pets").num_classes == 3
    assert load("./pets").num_classes == 2


def test_known_name_goes_before_a_folder_of_that_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.rename(folder.parent / "cifar10")
    monkeypatch.chdir(folder.parent)
    with pytest.raises(DataError, match="run `fedacd data get cifar10`"):
        load("cifar10")
    assert load("./cifar10").name == "cifar10"


class TestNpzInRoot:
    def test_known_name(self, root: Path) -> None:
        root.mkdir()
        sample = Sample(20, 20, 28, 1, num_classes=10)
        (root / "fashion-mnist.npz").write_bytes(sample.npz())
        dataset = load("fashion-mnist")
        assert dataset.name == "fashion-mnist"
        assert dataset.defaults == {
            "data.crop": 2,
            "data.flip": True,
            "train.weight_decay": 1e-5,
            "model.name": "small-cnn",
        }

    def test_known_name_that_does_not_fit(self, root: Path) -> None:
        root.mkdir()
        (root / "cifar100.npz").write_bytes(SAMPLE.npz())
        expected = r"cifar100\.npz has 3 classes and images .* \(3, 6, 6\): 'cifar100' has 100 and \(3, 32, 32\)"
        with pytest.raises(DataError, match=expected):
            load("cifar100")

    def test_any_name(self, root: Path) -> None:
        root.mkdir()
        (root / "other.npz").write_bytes(SAMPLE.npz())
        assert load("other").name == "other"

    def test_the_cache_goes_before(self, npz: str, root: Path) -> None:
        import_data(npz)
        (root / "mine.npz").write_bytes(Sample(8, 4, 6, 3, num_classes=2).npz())
        assert load("mine").num_classes == 3


class TestMistakes:
    @pytest.mark.parametrize("name", ["cifar10", "cifar100", "tiny-imagenet", "fashion-mnist"])
    def test_known_but_not_here(self, name: str, root: Path) -> None:
        expected = f"'{name}' is not here \\(looked for {root / name} and {name}.npz.*run `fedacd data get {name}`"
        with pytest.raises(DataError, match=expected):
            load(name)

    def test_unknown(self, npz: str) -> None:
        import_data(npz, name="flowers")
        with pytest.raises(DataError, match=r"unknown data set 'flower'. Did you mean 'flowers'\? Known: .*digits"):
            load("flower")

    @pytest.mark.parametrize(
        "name", ["./absent", "absent.npz", "/absent/folder", "~/absent", "~nobody-at-all/x", "../.."]
    )
    def test_no_such_path(self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(DataError, match=r"there is no file or folder|there is no such user|has no folder train"):
            load(name)

    @pytest.mark.parametrize("name", ["", "x" * 5000, "a\0b", "/\0"])
    def test_names_that_no_file_has(self, name: str) -> None:
        with pytest.raises(DataError):
            load(name)

    def test_a_file_of_another_kind(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", SAMPLE.x_train)
        with pytest.raises(DataError, match=r"x\.npy is neither an \.npz file nor a folder"):
            load(str(tmp_path / "x.npy"))

    def test_a_folder_named_like_a_file(self, folder: Path) -> None:
        renamed = folder.rename(folder.parent / "pets.npz")
        assert load(str(renamed)).class_names == ("cat", "dog")
