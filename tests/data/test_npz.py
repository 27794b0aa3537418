import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedacd.data.npz import read_npz
from fedacd.errors import DataError

from .archives import Sample

SAMPLE = Sample(6, 4, 5, 3, num_classes=3)


def save(path: Path, without: str = "", **changes: Any) -> Path:
    arrays = {key: np.asarray(value) for key, value in vars(SAMPLE).items()} | changes
    arrays.pop(without, None)
    np.savez(path, **arrays)
    return path


def test_read(tmp_path: Path) -> None:
    dataset = read_npz(save(tmp_path / "mine.npz", other=np.zeros(3)))
    assert SAMPLE.same(dataset)
    assert dataset.name == "mine"
    assert dataset.class_names == ("class 0", "class 1", "class 2")


def test_compressed_and_without_class_names(tmp_path: Path) -> None:
    arrays = {key: value for key, value in vars(SAMPLE).items() if key != "class_names"}
    np.savez_compressed(tmp_path / "mine.npz", **arrays)
    assert read_npz(tmp_path / "mine.npz").class_names == ("0", "1", "2")


def test_class_names_of_bytes(tmp_path: Path) -> None:
    assert read_npz(save(tmp_path / "a.npz", class_names=np.array([b"x", b"y", b"z"]))).class_names == ("x", "y", "z")


def test_a_share_needs_no_test_set(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=SAMPLE.x_train, y_train=SAMPLE.y_train)
    dataset = read_npz(tmp_path / "a.npz", share=True)
    assert np.array_equal(dataset.x_train, SAMPLE.x_train) and len(dataset.x_test) == len(dataset.y_test) == 0
    with pytest.raises(DataError, match=r"a\.npz lacks x_test, y_test: must hold x_train, y_train, x_test, y_test"):
        read_npz(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=SAMPLE.x_train, y=SAMPLE.y_train)
    with pytest.raises(DataError, match=r"b\.npz lacks x_train, y_train: must hold x_train, y_train\.$"):
        read_npz(tmp_path / "b.npz", share=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"without": "y_test"}, r"a\.npz lacks y_test: must hold x_train, y_train, x_test, y_test"),
        ({"x_train": SAMPLE.x_train / 255}, r"a\.npz: x_train has dtype float64"),
        ({"class_names": np.array("abc")}, r"class_names has shape \(\): must be \[C\]"),
        ({"class_names": np.array(["a", "b"])}, r"a\.npz: y_\w+\[\d\] = 2: .* 0 to 1, since class_names has 2 names"),
    ],
)
def test_mistakes(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_npz(save(tmp_path / "a.npz", **changes))


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    save(tmp_path / "a.npz", x_train=np.array([Trap()], dtype=object))
    with pytest.raises(DataError, match=r"a\.npz: x_train is an array of objects, which is not read: .*np\.stack"):
        read_npz(tmp_path / "a.npz")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("key", "cure"),
    [
        ("x_test", r"np\.stack\(images\)"),
        ("y_test", r"np\.array\(labels, np\.int64\)"),
        ("class_names", r"np\.array\(names, str\)"),
    ],
)
def test_objects_are_named_with_their_cure(tmp_path: Path, key: str, cure: str) -> None:
    changes: dict[str, Any] = {key: np.array([None, 1], dtype=object)}
    save(tmp_path / "a.npz", **changes)
    with pytest.raises(DataError, match=rf"a\.npz: {key} is an array of objects, .*save it as {cure}"):
        read_npz(tmp_path / "a.npz")


def test_a_single_array(tmp_path: Path) -> None:
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, SAMPLE.x_train)
    with pytest.raises(DataError, match="holds a single array"):
        read_npz(tmp_path / "a.npz")


def test_damage_of_any_kind(tmp_path: Path) -> None:
    whole = save(tmp_path / "a.npz").read_bytes()
    path = tmp_path / "b.npz"
    rng = np.random.default_rng(0)
    for length in [*range(10), *rng.integers(10, len(whole) - 1, 50).tolist()]:
        path.write_bytes(whole[:length])
        with pytest.raises(DataError):
            read_npz(path)
    refused = 0
    for _ in range(200):
        changed = bytearray(whole)
        changed[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        path.write_bytes(changed)
        try:
            read_npz(path)
        except DataError:
            refused += 1
    assert refused > 150


def test_a_text_with_that_name_is_no_npz_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    path.write_text("hello")
    with pytest.raises(DataError, match=r"cannot read .*mine\.npz: it is not an \.npz file, or it is cut short\."):
        read_npz(path)
