import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedacd.data.dataset import Arrays
from fedacd.data.tiny_imagenet import read_tiny_imagenet
from fedacd.errors import DataError

from .archives import flat_jpeg, tiny_imagenet, zipped

TOP = "tiny-imagenet-200"


def read(tmp_path: Path, members: dict[str, bytes], told: list[Any] | None = None) -> Arrays:
    path = tmp_path / "archive.zip"
    path.write_bytes(zipped(members))
    seen = told if told is not None else []
    return read_tiny_imagenet([path], tmp_path, lambda *args: seen.append(args))


def test_classes_and_samples_are_sorted(tmp_path: Path) -> None:
    told: list[Any] = []
    arrays = read(tmp_path, tiny_imagenet(), told)
    assert list(arrays.y_train) == [0, 0, 1, 1, 2, 2]
    assert arrays.x_train[:, 5, 5, 0].tolist() == [0, 1, 10, 11, 20, 21]
    assert list(arrays.y_test) == [0, 2]
    assert arrays.x_test[:, 5, 5, 0].tolist() == [100, 120]
    assert told == [("convert", 6, 8), ("convert", 8, 8)]


def test_grey_images_become_rgb(tmp_path: Path) -> None:
    arrays = read(tmp_path, tiny_imagenet())
    assert arrays.x_train.shape == (6, 64, 64, 3)
    assert (arrays.x_train[..., 0] == arrays.x_train[..., 2]).all()


def test_images_lie_in_the_folder(tmp_path: Path) -> None:
    arrays = read(tmp_path, tiny_imagenet())
    assert np.array_equal(np.load(tmp_path / "x_train.npy"), arrays.x_train)
    assert np.array_equal(np.load(tmp_path / "x_test.npy"), arrays.x_test)


def test_class_names(tmp_path: Path) -> None:
    assert read(tmp_path, tiny_imagenet()).class_names == ["goldfish", "crane (n02)", "crane (n03)"]
    wordless = tiny_imagenet() | {f"{TOP}/words.txt": b"n01\tgoldfish\n"}
    assert read(tmp_path, wordless).class_names == ["goldfish", "n02", "n03"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wnids.txt": None}, f"lacks {TOP}/wnids.txt"),
        ({"words.txt": b"\xff"}, "or it is not a text"),
        ({"val/val_annotations.txt": b"val_0.JPEG\tn07\t0\n"}, "names val_0.JPEG of class 'n07'"),
        ({"val/val_annotations.txt": b"val_9.JPEG\tn01\t0\n"}, "names val_9.JPEG of class 'n01'"),
        ({"val/val_annotations.txt": b""}, "holds 6 train and 0 val images"),
        ({"wnids.txt": b"n55", "val/val_annotations.txt": b""}, "holds 0 train and 0 val images"),
        ({"val/images/val_0.JPEG": flat_jpeg(1)[:100]}, "cannot read the image tiny-imagenet-200/val/images/val_0"),
        ({"val/images/val_0.JPEG": flat_jpeg(1, side=32)}, r"val_0\.JPEG is 32x32: must be 64x64"),
    ],
)
def test_damage(tmp_path: Path, changes: dict[str, bytes | None], message: str) -> None:
    members = tiny_imagenet()
    for name, data in changes.items():
        del members[f"{TOP}/{name}"]
        if data is not None:
            members[f"{TOP}/{name}"] = data
    with pytest.raises(DataError, match=message):
        read(tmp_path, members)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the system does not reserve room for files")
def test_room_is_reserved_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        read(tmp_path, tiny_imagenet())
