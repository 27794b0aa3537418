import sys

import numpy as np
import pytest

from fedacd.data import load
from fedacd.errors import DataError


def test_split() -> None:
    digits = load("digits")
    assert digits.name == "digits"
    assert digits.x_train.shape == (1438, 8, 8, 1)
    assert digits.x_test.shape == (359, 8, 8, 1)
    assert digits.class_names == tuple("0123456789")
    train, test = np.bincount(digits.y_train), np.bincount(digits.y_test)
    assert test.tolist() == [round(0.2 * size) for size in train + test]


def test_values_reach_from_black_to_white() -> None:
    digits = load("digits")
    assert sorted(set(digits.x_train.ravel())) == [round(value * 255 / 16) for value in range(17)]


def test_no_image_is_lost_or_doubled() -> None:
    from sklearn.datasets import load_digits

    digits = load("digits")
    ours = np.concatenate([digits.x_train, digits.x_test]).reshape(-1, 64)
    theirs = np.rint(load_digits().data * 255 / 16).astype(np.uint8)
    assert sorted(row.tobytes() for row in ours) == sorted(row.tobytes() for row in theirs)


def test_is_always_the_same() -> None:
    np.random.seed(1)
    assert load("digits").fingerprint == "889b0f4dce16d8db"


def test_defaults() -> None:
    assert load("digits").defaults == {
        "data.crop": 0,
        "data.flip": False,
        "train.weight_decay": 1e-5,
        "model.name": "small-cnn",
    }


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match="'digits' comes with scikit-learn: pip install scikit-learn"):
        load("digits")
