import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedacd.data.folder import read_folder
from fedacd.errors import DataError


def put(path: Path, colour: Any, size: tuple[int, int] = (6, 4), mode: str = "RGB") -> None:
    """An image of one colour; `size` is (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes; red tells the class, green the image, blue train (0) from test (200)."""
    top = tmp_path / "pets"
    for label, name in enumerate(("cat", "dog")):
        for number in range(3):
            put(top / "train" / name / f"{number}.png", (label, number, 0))
        put(top / "test" / name / "0.png", (label, 0, 200))
    return top


def test_read(folder: Path) -> None:
    (folder / "train" / "cat" / "notes.txt").write_text("not an image")
    (folder / "train" / "cat" / "._0.png").write_text("not an image either")
    (folder / "train" / ".cache").mkdir()
    dataset = read_folder(folder)
    assert dataset.name == "pets"
    assert dataset.class_names == ("cat", "dog")
    assert dataset.shape == (3, 4, 6)
    assert dataset.y_train.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.x_train[:, 0, 0].tolist() == [[label, number, 0] for label in (0, 1) for number in (0, 1, 2)]
    assert dataset.x_test[:, 3, 5].tolist() == [[0, 0, 200], [1, 0, 200]]


def test_val_serves_as_test(folder: Path) -> None:
    (folder / "test").rename(folder / "val")
    assert read_folder(folder).y_test.tolist() == [0, 1]


@pytest.mark.parametrize("suffix", ["png", "jpg", "JPEG", "webp", "bmp", "ppm", "tif", "tiff", "gif"])
def test_kinds_of_files(folder: Path, suffix: str) -> None:
    put(folder / "train" / "dog" / f"z.{suffix}", (200, 200, 200))
    assert abs(int(read_folder(folder).x_train[-1, 2, 2, 1]) - 200) <= 2


class TestGrey:
    def test_one_channel_if_all_are_grey(self, tmp_path: Path) -> None:
        for part in ("train", "test"):
            put(tmp_path / part / "a" / "0.png", 7, mode="L")
            put(tmp_path / part / "b" / "0.png", 1, mode="1")
        dataset = read_folder(tmp_path)
        assert dataset.shape == (1, 4, 6)
        assert dataset.x_train[:, 0, 0, 0].tolist() == [7, 255]

    def test_rgb_if_one_is_not(self, folder: Path) -> None:
        put(folder / "train" / "cat" / "3.png", 9, mode="L")
        assert read_folder(folder).x_train[3, 0, 0].tolist() == [9, 9, 9]

    def test_transparency_is_dropped(self, folder: Path) -> None:
        put(folder / "train" / "cat" / "3.png", (1, 2, 3, 0), mode="RGBA")
        assert read_folder(folder).x_train[3, 0, 0].tolist() == [1, 2, 3]

    def test_sixteen_bits_are_refused(self, folder: Path) -> None:
        put(folder / "train" / "cat" / "3.png", 40_000, mode="I;16")
        with pytest.raises(DataError, match=r"cat/3\.png has more than 8 bits a channel \(mode I;16\)"):
            read_folder(folder)


class TestSize:
    def test_unequal_sizes_are_named(self, folder: Path) -> None:
        put(folder / "test" / "dog" / "odd.png", (0, 0, 0), size=(7, 9))
        expected = r"cat/0\.png is 6x4, .*dog/odd\.png is 7x9; .*`fedacd data import FOLDER --size N`"
        with pytest.raises(DataError, match=expected):
            read_folder(folder)

    def test_are_brought_to_one(self, folder: Path) -> None:
        put(folder / "test" / "dog" / "odd.png", (50, 60, 70), size=(7, 9))
        dataset = read_folder(folder, size=5)
        assert dataset.shape == (3, 5, 5)
        assert dataset.x_test[-1, 4, 4].tolist() == [50, 60, 70]

    def test_shrinking_averages(self, folder: Path) -> None:
        stripes = np.zeros((64, 64), np.uint8)
        stripes[:, ::2] = 200
        Image.fromarray(stripes).save(folder / "train" / "dog" / "9.png")
        shrunk = read_folder(folder, size=8).x_train[-1, ..., 0]
        assert abs(shrunk.astype(int) - 100).max() <= 15  # taking single pixels would give 0 or 200


class TestShare:
    """A client's part of a data set."""

    @pytest.mark.parametrize("part", ["train", "."])
    def test_without_a_test_set_all_images_train(self, tmp_path: Path, part: str) -> None:
        for number in range(3):
            put(tmp_path / part / "dog" / f"{number}.png", (1, number, 0))
        dataset = read_folder(tmp_path, share=True)
        assert dataset.class_names == ("dog",)
        assert dataset.x_train[:, 0, 0].tolist() == [[1, number, 0] for number in range(3)]
        assert dataset.x_test.shape == (0, 4, 6, 3) and dataset.y_test.tolist() == []

    def test_a_test_set_may_have_other_classes_or_none(self, folder: Path) -> None:
        put(folder / "test" / "eel" / "0.png", (0, 0, 0))
        dataset = read_folder(folder, share=True)
        assert dataset.class_names == ("cat", "dog") and dataset.y_test.tolist() == [0, 1]
        for name in ("cat", "dog"):
            (folder / "test" / name / "0.png").unlink()
        assert read_folder(folder, share=True).y_test.tolist() == []

    def test_class_folders_may_be_empty(self, folder: Path) -> None:
        (folder / "train" / "bee").mkdir()
        dataset = read_folder(folder, share=True)
        assert dataset.class_names == ("bee", "cat", "dog") and dataset.y_train.tolist() == [1, 1, 1, 2, 2, 2]

    def test_but_not_all_of_them(self, tmp_path: Path) -> None:
        (tmp_path / "cat").mkdir()
        with pytest.raises(DataError, match=r"holds no image \(\.bmp, "):
            read_folder(tmp_path, share=True)

    def test_no_classes(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"has no class folders: must hold CLASS/IMAGE\."):
            read_folder(tmp_path, share=True)

    def test_a_test_set_alone(self, folder: Path) -> None:
        (folder / "train").rename(folder / "training")
        with pytest.raises(DataError, match="has no folder train"):
            read_folder(folder, share=True)


class TestMistakes:
    def test_no_train(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="has no folder train: must hold train/CLASS/IMAGE"):
            read_folder(tmp_path)

    def test_no_test(self, folder: Path) -> None:
        (folder / "test").rename(folder / "testing")
        with pytest.raises(DataError, match="has no folder test or val"):
            read_folder(folder)

    def test_no_classes(self, tmp_path: Path) -> None:
        (tmp_path / "train").mkdir()
        (tmp_path / "test").mkdir()
        with pytest.raises(DataError, match="train has no class folders"):
            read_folder(tmp_path)

    def test_empty_class(self, folder: Path) -> None:
        (folder / "train" / "eel").mkdir()
        with pytest.raises(DataError, match=r"train/eel holds no image \(\.bmp, "):
            read_folder(folder)

    def test_empty_test(self, folder: Path) -> None:
        for name in ("cat", "dog"):
            (folder / "test" / name / "0.png").unlink()
        with pytest.raises(DataError, match="test holds no image"):
            read_folder(folder)

    def test_class_in_test_alone(self, folder: Path) -> None:
        put(folder / "test" / "eel" / "0.png", (0, 0, 0))
        with pytest.raises(DataError, match=r"test/eel is a class that .*train lacks"):
            read_folder(folder)

    def test_class_in_train_alone(self, folder: Path) -> None:
        put(folder / "train" / "eel" / "0.png", (0, 0, 0))
        assert read_folder(folder).class_names == ("cat", "dog", "eel")

    def test_one_class(self, tmp_path: Path) -> None:
        put(tmp_path / "train" / "a" / "0.png", 1)
        put(tmp_path / "test" / "a" / "0.png", 1)
        with pytest.raises(DataError, match=r"class_names = \['a'\]: must be 2 names or more"):
            read_folder(tmp_path)

    @pytest.mark.parametrize("keep", [0, 20, 50])
    def test_unreadable_image(self, folder: Path, keep: int) -> None:
        path = folder / "train" / "dog" / "1.png"
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(DataError, match=r"cannot read the image .*train/dog/1\.png"):
            read_folder(folder)

    def test_without_pillow(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "PIL", None)
        with pytest.raises(DataError, match="needs Pillow: pip install pillow"):
            read_folder(folder)
