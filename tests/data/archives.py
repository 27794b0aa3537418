"""Small archives laid out like the official ones."""

import gzip
import io
import pickle
import pickletools
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Dump = Callable[[dict[str, Any]], bytes]


def tar_gz(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), mtime=0)


def python2_pickle(content: dict[str, Any]) -> bytes:
    """Protocol 2 as Python 2 wrote it, opcode by opcode: byte strings, and numpy before its modules moved."""
    body = b"}" + b"(" + b"".join(_text(key) + _python2(value) for key, value in content.items()) + b"u"
    data = b"\x80\x02" + body + b"."
    assert all(opcode.proto <= 2 for opcode, _, _ in pickletools.genops(data))
    return data


def _python2(value: Any) -> bytes:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return b"K" + struct.pack("<B", value)
    if isinstance(value, list):
        return b"](" + b"".join(_python2(item) for item in value) + b"e"
    assert isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 2
    reconstruct = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + _text("b") + b"\x87R"
    minus_one = b"J\xff\xff\xff\xff"
    dtype_state = b"(K\x03" + _text("|") + b"NNN" + minus_one + minus_one + b"K\x00tb"
    dtype = b"cnumpy\ndtype\n" + _text("u1") + b"K\x00K\x01\x87R" + dtype_state
    shape = b"M" + struct.pack("<H", value.shape[0]) + b"M" + struct.pack("<H", value.shape[1]) + b"\x86"
    raw = value.tobytes()
    return reconstruct + b"(K\x01" + shape + dtype + b"\x89" + b"T" + struct.pack("<I", len(raw)) + raw + b"tb"


def _text(text: str) -> bytes:
    return b"U" + struct.pack("<B", len(text)) + text.encode()


def python3_pickle(content: dict[str, Any]) -> bytes:
    return pickle.dumps({key.encode(): value for key, value in content.items()}, protocol=4)


def rows(x: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images as CIFAR stores them: all of red, all of green, all of blue."""
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2).reshape(len(x), -1))


class Sample:
    """Random images and labels of a small data set."""

    def __init__(self, num_train: int, num_test: int, side: int, channels: int, num_classes: int, seed: int = 0):
        rng = np.random.default_rng(seed)
        self.x_train = rng.integers(0, 256, (num_train, side, side, channels), dtype=np.uint8)
        self.x_test = rng.integers(0, 256, (num_test, side, side, channels), dtype=np.uint8)
        self.y_train = rng.permutation(np.arange(num_train) % num_classes)
        self.y_test = rng.choice(self.y_train, num_test)
        self.class_names = [f"class {label}" for label in range(num_classes)]

    def same(self, other: Any) -> bool:
        keys = ("x_train", "y_train", "x_test", "y_test")
        return all(np.array_equal(getattr(self, key), getattr(other, key)) for key in keys)

    def npz(self) -> bytes:
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {key: np.asarray(value) for key, value in vars(self).items()}
        np.savez(buffer, **arrays)
        return buffer.getvalue()


def cifar10(sample: Sample, dump: Dump = python2_pickle) -> bytes:
    members = {"batches.meta": dump({"label_names": sample.class_names, "num_vis": 3})}
    # Out of order on purpose: the numbers of the batches decide, not their places in the archive.
    for number in (4, 1, 5, 2, 3):
        part = slice((number - 1) * len(sample.x_train) // 5, number * len(sample.x_train) // 5)
        batch = {"batch_label": "b", "labels": sample.y_train[part].tolist(), "data": rows(sample.x_train[part])}
        members[f"data_batch_{number}"] = dump(batch)
    members["test_batch"] = dump({"data": rows(sample.x_test), "labels": sample.y_test.tolist()})
    members["readme.html"] = b"not a pickle"
    return tar_gz({f"cifar-10-batches-py/{name}": data for name, data in members.items()})


def cifar100(sample: Sample, dump: Dump = python2_pickle) -> bytes:
    def part(x: NDArray[np.uint8], y: NDArray[np.int64]) -> bytes:
        return dump({"coarse_labels": [0] * len(y), "fine_labels": y.tolist(), "data": rows(x)})

    members = {
        "train": part(sample.x_train, sample.y_train),
        "test": part(sample.x_test, sample.y_test),
        "meta": dump({"fine_label_names": sample.class_names, "coarse_label_names": ["all"]}),
    }
    return tar_gz({f"cifar-100-python/{name}": data for name, data in members.items()})


def idx(array: NDArray[np.uint8]) -> bytes:
    return gzip.compress(
        struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes(), mtime=0
    )


def fashion_mnist(sample: Sample) -> dict[str, bytes]:
    return {
        "train-images-idx3-ubyte.gz": idx(sample.x_train[..., 0]),
        "train-labels-idx1-ubyte.gz": idx(sample.y_train.astype(np.uint8)),
        "t10k-images-idx3-ubyte.gz": idx(sample.x_test[..., 0]),
        "t10k-labels-idx1-ubyte.gz": idx(sample.y_test.astype(np.uint8)),
    }


def flat_jpeg(colour: int | tuple[int, int, int], side: int = 64) -> bytes:
    """A JPEG of one colour, grey if the colour is a number."""
    buffer = io.BytesIO()
    Image.new("L" if isinstance(colour, int) else "RGB", (side, side), colour).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def tiny_imagenet() -> dict[str, bytes]:
    """Three classes; the shade of an image tells which it is: 10 * label for train, 100 + 10 * label for val."""
    members = {
        "wnids.txt": b"n03\nn01\nn02\n",
        "words.txt": b"n01\tgoldfish, Carassius auratus\nn02\tcrane\nn03\tcrane, lifting device\nn09\tunused\n",
        "train/n01/n01_boxes.txt": b"n01_0.JPEG\t0\t0\t1\t1\n",
        "val/val_annotations.txt": b"val_1.JPEG\tn03\t0\t0\t1\t1\nval_0.JPEG\tn01\t0\t0\t1\t1\n",
        "val/images/val_0.JPEG": flat_jpeg((100, 100, 100)),
        "val/images/val_1.JPEG": flat_jpeg(120),
        "test/images/test_0.JPEG": flat_jpeg(255),
    }
    for label, wnid in ((2, "n03"), (0, "n01"), (1, "n02")):
        for number in (1, 0):
            shade = 10 * label + number
            name = f"train/{wnid}/images/{wnid}_{number}.JPEG"
            members[name] = flat_jpeg(shade if number else (shade, shade, shade))
    return {f"tiny-imagenet-200/{name}": data for name, data in members.items()}


def zipped(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()
