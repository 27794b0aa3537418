"""A test set where the source has none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedacd.cli_data import data_app
from fedacd.data import cache, import_data, load
from fedacd.data.split import stratified
from fedacd.errors import DataError

Y = np.repeat([0, 1, 2, 3], [50, 10, 2, 1])
X = np.arange(63, dtype=np.uint8).reshape(63, 1, 1, 1)


class TestStratified:
    def test_every_class_gives_its_part(self) -> None:
        """A fifth of 50 and of 10; one of two; a class of one stays in train."""
        is_test = stratified(Y, 0.2)
        assert np.bincount(Y[is_test], minlength=4).tolist() == [10, 2, 1, 0]
        assert np.bincount(Y[stratified(Y, 0.999)], minlength=4).tolist() == [49, 9, 1, 0]

    def test_is_always_the_same_and_shuffled(self) -> None:
        assert np.array_equal(stratified(Y, 0.2), stratified(Y, 0.2))
        assert np.flatnonzero(stratified(Y, 0.2)[:50]).tolist() == sorted(np.random.RandomState(0).permutation(50)[:10])

    @pytest.mark.parametrize("part", [0.0, 1.0, -0.2, 20, float("nan")])
    def test_a_part_is_between_none_and_all(self, part: float) -> None:
        with pytest.raises(DataError, match=r"test = .*: must be above 0 and below 1"):
            stratified(Y, part)

    def test_classes_of_one(self) -> None:
        with pytest.raises(DataError, match="no class has the two images"):
            stratified(np.arange(5), 0.5)


def save(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


class TestNpz:
    @pytest.mark.parametrize("names", [("x", "y"), ("x_train", "y_train")])
    def test_is_split(self, tmp_path: Path, names: tuple[str, str]) -> None:
        path = save(tmp_path / "mine.npz", **dict(zip(names, (X, Y), strict=True)), class_names=list("abcd"))
        dataset = import_data(path, test=0.2)
        is_test = stratified(Y, 0.2)
        assert np.array_equal(dataset.x_train, X[~is_test]) and np.array_equal(dataset.y_train, Y[~is_test])
        assert np.array_equal(dataset.x_test, X[is_test]) and np.array_equal(dataset.y_test, Y[is_test])
        assert dataset.class_names == tuple("abcd")
        assert load("mine").fingerprint == dataset.fingerprint

    @pytest.mark.parametrize("names", [("x", "y"), ("x_train", "y_train")])
    def test_without_the_option_it_is_named(self, tmp_path: Path, names: tuple[str, str]) -> None:
        path = save(tmp_path / "mine.npz", **dict(zip(names, (X, Y), strict=True)))
        with pytest.raises(DataError, match=r"lacks .*x_test, y_test.*`fedacd data import .*mine\.npz --test 0\.2`"):
            load(path)

    def test_a_test_set_that_is_there_stays(self, tmp_path: Path) -> None:
        path = save(tmp_path / "mine.npz", x_train=X, y_train=Y, x_test=X, y_test=Y)
        with pytest.raises(DataError, match=r"cannot be split by --test: must hold x and y.* and no test set"):
            import_data(path, test=0.2)

    @pytest.mark.parametrize("y", [Y[:5], Y[:, None], np.int64(3)])
    def test_labels_that_do_not_fit(self, tmp_path: Path, y: Any) -> None:
        path = save(tmp_path / "mine.npz", x=X, y=y)
        with pytest.raises(DataError, match=r"mine\.npz: x has shape \(63, 1, 1, 1\) and y .*: must be as many"):
            import_data(path, test=0.2)


def test_on_the_command_line(tmp_path: Path) -> None:
    path = save(tmp_path / "mine.npz", x=X, y=Y)
    done = CliRunner().invoke(data_app, ["import", path, "--test", "0.2"])
    assert done.exit_code == 0 and "--dataset mine" in done.output
    assert len(load("mine").y_test) == 13
    assert cache.read_meta("mine")["source"] == f"{path} (--test 0.2)"


class TestFolder:
    @pytest.fixture
    def pets(self, tmp_path: Path) -> Path:
        """Five cats, ten dogs; the colour tells the image."""
        for number in range(15):
            path = tmp_path / "pets" / ("cat" if number < 5 else "dog") / f"{number:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (4, 4), number).save(path)
        return tmp_path / "pets"

    def test_class_folders_alone(self, pets: Path) -> None:
        dataset = import_data(str(pets), test=0.2)
        assert dataset.class_names == ("cat", "dog")
        assert np.bincount(dataset.y_train).tolist() == [4, 8] and np.bincount(dataset.y_test).tolist() == [1, 2]
        for x, y in ((dataset.x_train, dataset.y_train), (dataset.x_test, dataset.y_test)):
            assert np.array_equal(x[:, 0, 0, 0] >= 5, y == 1)
        together = [*dataset.x_train[:, 0, 0, 0].tolist(), *dataset.x_test[:, 0, 0, 0].tolist()]
        assert sorted(together) == list(range(15))

    def test_a_train_part_alone(self, pets: Path, tmp_path: Path) -> None:
        (tmp_path / "own").mkdir()
        pets.rename(tmp_path / "own" / "train")
        assert len(import_data(str(tmp_path / "own"), test=0.2).y_test) == 3

    def test_without_the_option_it_is_named(self, pets: Path) -> None:
        with pytest.raises(DataError, match=r"pets has no folder train.*`fedacd data import \S*pets --test 0\.2`"):
            load(str(pets))

    @pytest.mark.parametrize("name", ["test", "val"])
    def test_a_test_set_that_is_there_stays(self, pets: Path, name: str) -> None:
        (pets / name).mkdir()
        with pytest.raises(DataError, match=f"{name} is a test set already: leave --test out"):
            import_data(str(pets), test=0.2)

    def test_an_empty_class(self, pets: Path) -> None:
        (pets / "eel").mkdir()
        with pytest.raises(DataError, match="eel holds no image"):
            import_data(str(pets), test=0.2)
