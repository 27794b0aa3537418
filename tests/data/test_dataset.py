import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedacd.data import Dataset
from fedacd.errors import DataError

X = np.arange(6 * 4 * 5 * 3, dtype=np.uint8).reshape(6, 4, 5, 3)
Y = np.array([0, 1, 2, 0, 1, 2])


def make(**changes: Any) -> Dataset:
    given: dict[str, Any] = {"x_train": X, "y_train": Y, "x_test": X[:2], "y_test": Y[:2]} | changes
    return Dataset.from_arrays(**given)


class TestFromArrays:
    def test_fields(self) -> None:
        dataset = make(class_names=["a", "b", "c"], name="mine")
        assert dataset.name == "mine"
        assert dataset.class_names == ("a", "b", "c")
        assert dataset.num_classes == 3
        assert dataset.shape == (3, 4, 5)
        assert dataset.y_train.dtype == np.int64
        assert np.array_equal(dataset.x_train, X)
        assert np.array_equal(dataset.y_test, [0, 1])

    def test_names_are_numbers_where_none_are_given(self) -> None:
        assert make().class_names == ("0", "1", "2")

    def test_named_classes_may_have_no_image(self) -> None:
        assert make(class_names=list("abcde")).num_classes == 5

    def test_a_share_may_lack_classes(self) -> None:
        """A client's: three of the four classes are in its test set alone, or nowhere."""
        share = make(y_train=[2] * 6, y_test=[0, 3], share=True)
        assert share.num_classes == 4 and set(share.y_train.tolist()) == {2}

    @pytest.mark.parametrize("class_names", [None, ["a"]])
    def test_a_share_may_hold_a_single_class(self, class_names: list[str] | None) -> None:
        share = make(y_train=[0] * 6, y_test=[0, 0], class_names=class_names, share=True)
        assert share.num_classes == 1 and share.class_names == tuple(class_names or ["0"])

    def test_a_share_may_have_no_test_set(self) -> None:
        share = make(x_test=None, y_test=None, share=True)
        assert share.x_test.shape == (0, 4, 5, 3) and share.y_test.shape == (0,) and share.y_test.dtype == np.int64
        assert share.mean == make().mean and share.num_classes == 3

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"x_test": None}, "x_test has 0 images but y_test has 2 labels"),
            ({"y_test": None}, "x_test has 2 images but y_test has 0 labels"),
            ({"x_train": X[:0], "y_train": []}, "x_train is empty"),
            ({"class_names": []}, r"class_names = \[\]: must be 1 name or more"),
            ({"y_train": [-1] * 6, "x_test": None, "y_test": None}, r"y_train\[0\] = -1: labels must be 0 or more"),
        ],
    )
    def test_mistakes_in_a_share(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(DataError, match=message):
            make(**changes, share=True)

    def test_grey_images_get_a_channel(self) -> None:
        dataset = make(x_train=X[..., 0], x_test=X[:2, ..., 0])
        assert dataset.x_train.shape == (6, 4, 5, 1)
        assert dataset.shape == (1, 4, 5)

    def test_tensors_lists_and_other_integers_make_the_same_data_set(self) -> None:
        tensors = make(x_train=torch.from_numpy(X), y_train=torch.from_numpy(Y), y_test=[0, 1])
        small = make(y_train=Y.astype(np.uint8), y_test=np.array([0, 1], ">i4"))
        assert tensors.fingerprint == small.fingerprint == make().fingerprint

    def test_a_view_in_another_order_is_made_contiguous(self) -> None:
        first = np.ascontiguousarray(X.transpose(0, 3, 1, 2))
        dataset = make(x_train=first.transpose(0, 2, 3, 1))
        assert dataset.x_train.flags.c_contiguous
        assert dataset.fingerprint == make().fingerprint

    def test_arrays_are_read_only_and_the_callers_are_not(self) -> None:
        x, y = X.copy(), Y.copy()
        dataset = make(x_train=x, y_train=y)
        for array in (dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
        assert np.shares_memory(dataset.x_train, x)
        x[0], y[0] = 1, 1

    def test_travels_between_processes(self) -> None:
        dataset = make()
        copy = pickle.loads(pickle.dumps(dataset))
        assert copy.fingerprint == dataset.fingerprint
        assert np.array_equal(copy.x_train, dataset.x_train)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"x_train": X / 255}, r"x_train has dtype float64.*\(x \* 255\)\.round\(\)\.astype\(np\.uint8\)"),
            ({"x_test": X[:2].astype(np.int64)}, "x_test has dtype int64: must be uint8; give values 0 to 255"),
            ({"x_train": X[0, 0]}, r"x_train has shape \(5, 3\): must be \[N, H, W, channels\]"),
            ({"x_train": X.transpose(0, 3, 1, 2)}, r"x_train has shape \(6, 3, 4, 5\).*transpose\(0, 2, 3, 1\)"),
            ({"x_test": X[:2, :3]}, "x_test holds images of 3x5x3, x_train of 4x5x3"),
            ({"x_train": X[:5]}, "x_train has 5 images but y_train has 6 labels"),
            ({"y_test": [0]}, "x_test has 2 images but y_test has 1 labels"),
            ({"x_test": X[:0]}, "x_test is empty"),
            ({"x_test": None, "y_test": None}, "x_test is an array of objects"),
            ({"y_train": []}, "y_train is empty"),
            ({"y_train": Y.reshape(3, 2)}, r"y_train has shape \(3, 2\): must be \[N\]"),
            ({"y_train": Y / 2}, "y_train has dtype float64: must be whole numbers"),
            ({"y_train": Y == 1}, "y_train has dtype bool: must be whole numbers"),
            ({"y_train": list("abcabc")}, "y_train has dtype <U1: must be whole numbers"),
            ({"y_train": [0, 1, -1, 0, 1, -2]}, r"y_train\[2\] = -1: labels must be 0 to 1"),
            ({"y_train": [-1] * 6, "y_test": [-1, -1]}, r"y_train\[0\] = -1: labels must be 0 or more"),
            (
                {"y_test": [0, 7], "class_names": ["abc"] * 3},
                r"y_test\[1\] = 7: labels must be 0 to 2, since class_names",
            ),
            ({"class_names": ["a", "b"]}, r"y_train\[2\] = 2: .* 0 to 1, since class_names has 2 names\."),
            (
                {"y_train": Y + 1, "y_test": Y[:2] + 1},
                r"no image has the label 0: without class_names, .* Give class_names, or .*return_inverse=True\)\[1\]",
            ),
            ({"y_train": Y * 2, "y_test": Y[:2] * 2}, "no image has the label 1: without class_names"),
            ({"y_test": [0, 3]}, "y_test has the label 3, which y_train lacks: every class must be in train"),
            (
                {"y_test": [0, 3], "class_names": list("abcd")},
                r"y_test has the label 3 \('d'\), which y_train lacks: every class must be in train",
            ),
            ({"y_train": [0] * 6, "y_test": [0, 0]}, "all labels are 0: there must be 2 classes or more"),
            ({"class_names": ["a"]}, r"class_names = \['a'\]: must be 2 names or more"),
            ({"class_names": []}, r"class_names = \[\]: must be 2 names or more"),
            ({"y_test": [0, 10**12]}, r"y_test\[1\] = 1000000000000: labels must be 0 to 999999"),
            ({"y_test": np.array([0, 2**64 - 1], np.uint64)}, r"y_test\[1\] = 18446744073709551615"),
            ({"class_names": "abc"}, "class_names = 'abc': must be a list"),
            ({"x_train": np.array([X[0], X[0, :2]] * 3, dtype=object)}, "x_train is an array of objects.*one size"),
            ({"x_train": [X[0], X[0, :2]]}, "x_train cannot be read as an array"),
            ({"x_train": torch.zeros(6, 4, 5, 3, dtype=torch.bfloat16)}, "x_train cannot be read as an array"),
        ],
    )
    def test_mistakes(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(DataError, match=message):
            make(**changes)


class TestStatistics:
    @given(hnp.arrays(np.uint8, st.tuples(*[st.integers(1, 7)] * 3, st.sampled_from([1, 3]))))
    def test_equal_those_of_numpy(self, x: Any) -> None:
        dataset = Dataset.from_arrays(x, [0] * len(x), x, [0] * len(x), class_names=["a", "b"])
        flat = x.reshape(-1, x.shape[3]) / 255
        assert dataset.mean == pytest.approx(flat.mean(0), rel=1e-12)
        varies = np.ptp(x.reshape(-1, x.shape[3]), axis=0) > 0
        assert dataset.std == pytest.approx(np.where(varies, flat.std(0), 1.0), rel=1e-9)

    def test_by_hand(self) -> None:
        x = np.array([[[[0, 51, 7]]], [[[255, 102, 7]]]], np.uint8)  # two images of one pixel
        dataset = Dataset.from_arrays(x, [0, 1], x, [0, 1])
        assert dataset.mean == pytest.approx((0.5, 0.3, 7 / 255))
        assert dataset.std == pytest.approx((0.5, 0.1, 1.0))  # a constant channel: 1

    def test_blocks_are_put_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = make()
        monkeypatch.setattr("fedacd.data.dataset._BLOCK", 100)
        parts = make()
        assert (parts.mean, parts.std, parts.fingerprint) == (whole.mean, whole.std, whole.fingerprint)
        assert math.isclose(whole.mean[0], X[..., 0].mean() / 255)


class TestFingerprint:
    def test_form(self) -> None:
        assert len(make().fingerprint) == 16
        assert int(make().fingerprint, 16) >= 0

    def test_the_order_of_the_training_set_counts_and_that_of_the_test_set_does_not(self) -> None:
        turned = np.arange(6)[::-1]
        whole = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y}
        assert make(**whole | {"x_test": X[turned], "y_test": Y[turned]}).fingerprint == make(**whole).fingerprint
        assert make(**whole | {"y_test": Y[turned]}).fingerprint != make(**whole).fingerprint
        assert make(**whole | {"x_train": X[turned], "y_train": Y[turned]}).fingerprint != make(**whole).fingerprint

    def test_stays_what_it_is(self) -> None:
        assert make().fingerprint == "516e37484115c063"

    def test_name_and_defaults_do_not_count(self) -> None:
        assert make(name="b", class_names=["x", "y", "z"]).fingerprint == make().fingerprint

    @given(st.sampled_from(["x_train", "x_test", "y_train", "y_test"]), st.integers(0, 10**6))
    def test_every_value_counts(self, key: str, place: int) -> None:
        array = {"x_train": X, "y_train": Y, "x_test": X[:2], "y_test": Y[:2]}[key].copy()
        flat = array.reshape(-1)
        flat[place % flat.size] = (int(flat[place % flat.size]) + 1) % 3
        assert make(**{key: array}).fingerprint != make().fingerprint

    def test_shape_counts(self) -> None:
        turned = make(x_train=X.reshape(6, 5, 4, 3), x_test=X[:2].reshape(2, 5, 4, 3))
        assert turned.fingerprint != make().fingerprint

    def test_the_border_of_train_and_test_counts(self) -> None:
        moved = make(x_train=X[:5], y_train=Y[:5], x_test=X[[5, 0, 1]], y_test=Y[[5, 0, 1]])
        assert moved.fingerprint != make().fingerprint


class TestDefaults:
    @pytest.mark.parametrize(
        ("height", "width", "model"),
        [(31, 64, "small-cnn"), (32, 32, "cnn"), (63, 80, "cnn"), (64, 64, "resnet18"), (8, 8, "small-cnn")],
    )
    def test_by_the_smaller_side(self, height: int, width: int, model: str) -> None:
        x = np.zeros((2, height, width, 3), np.uint8)
        assert Dataset.from_arrays(x, [0, 1], x, [0, 1]).defaults == {
            "data.crop": 0,
            "data.flip": False,
            "train.weight_decay": 1e-5,
            "model.name": model,
        }

    def test_given_ones_go_before(self) -> None:
        defaults = make(defaults={"data.flip": True}).defaults
        assert defaults["data.flip"] is True
        assert defaults["model.name"] == "small-cnn"
