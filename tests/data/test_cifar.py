import os
import pickle
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from fedacd.data.cifar import CIFAR10, CIFAR100, read_cifar, unpickle
from fedacd.errors import DataError

from . import archives
from .archives import Sample, python2_pickle, python3_pickle


@pytest.mark.parametrize("dump", [python2_pickle, python3_pickle])
class TestReadCifar:
    def test_cifar10(self, tmp_path: Path, dump: archives.Dump) -> None:
        sample = Sample(20, 6, 32, 3, num_classes=10)
        path = tmp_path / "archive"
        path.write_bytes(archives.cifar10(sample, dump))
        told: list[Any] = []
        arrays = read_cifar(CIFAR10, [path], tmp_path, lambda *seen: told.append(seen))
        assert sample.same(arrays)
        assert [_plain(name) for name in arrays.class_names] == sample.class_names
        assert told == [("convert", done, 7) for done in range(1, 8)]

    def test_cifar100(self, tmp_path: Path, dump: archives.Dump) -> None:
        sample = Sample(7, 5, 32, 3, num_classes=100)
        path = tmp_path / "archive"
        path.write_bytes(archives.cifar100(sample, dump))
        arrays = read_cifar(CIFAR100, [path], tmp_path, lambda *_: None)
        assert sample.same(arrays)
        assert [_plain(name) for name in arrays.class_names] == sample.class_names


def _plain(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"train": {}, "test": {}}, "lacks meta"),
        ({"train": {}, "test": {}, "meta": {}}, r"'data' of a batch is not an array of uint8 \[N, 3072\]"),
        ({"train": {"data": np.zeros((2, 3071), np.uint8)}, "test": {}, "meta": {}}, "is not an array of uint8"),
        ({"train": {"data": np.zeros((2, 3072), np.uint8)}, "test": {}, "meta": {}}, "'fine_labels' is not a list"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, members: dict[str, dict[str, Any]], message: str) -> None:
    path = tmp_path / "archive"
    path.write_bytes(archives.tar_gz({name: python2_pickle(content) for name, content in members.items()}))
    with pytest.raises(DataError, match=message):
        read_cifar(CIFAR100, [path], tmp_path, lambda *_: None)


class TestUnpickle:
    def test_python2(self) -> None:
        data = np.arange(12, dtype=np.uint8).reshape(3, 4)
        content = unpickle(python2_pickle({"data": data, "labels": [1, 2, 3], "name": "x"}), "file")
        assert np.array_equal(content[b"data"], data)
        assert content[b"labels"] == [1, 2, 3]
        assert content[b"name"] == b"x"

    @pytest.mark.parametrize("protocol", [3, 4])
    @pytest.mark.parametrize("order", ["C", "F"])
    def test_python3(self, protocol: int, order: Literal["C", "F"]) -> None:
        data = np.arange(12, dtype=np.uint8).reshape(3, 4).copy(order)
        assert np.array_equal(unpickle(pickle.dumps({b"data": data}, protocol), "file")[b"data"], data)

    def test_other_arrays_are_refused(self) -> None:
        with pytest.raises(DataError, match="file: the pickle holds an array that is not of uint8"):
            unpickle(pickle.dumps({b"data": np.zeros(3)}, 4), "file")

    def test_texts_of_python3_serve_as_keys(self) -> None:
        assert unpickle(pickle.dumps({"labels": [1]}), "file") == {b"labels": [1]}

    def test_a_command_is_refused_and_not_run(self, tmp_path: Path) -> None:
        witness = tmp_path / "ran"
        for protocol in range(5):
            data = pickle.dumps({"data": _Command(f"touch {witness}")}, protocol=protocol)
            with pytest.raises(DataError, match=rf"batch: the pickle wants {os.name}\.system: only numpy"):
                unpickle(data, "batch")
        assert not witness.exists()

    def test_a_command_by_hand(self, tmp_path: Path) -> None:
        witness = tmp_path / "ran"
        data = b"\x80\x02cos\nsystem\nU\x00".replace(b"U\x00", b"X" + _length(f"touch {witness}")) + b"\x85R."
        with pytest.raises(DataError, match=r"the pickle wants os\.system"):
            unpickle(data, "batch")
        assert not witness.exists()

    @pytest.mark.parametrize(
        "wanted",
        ["builtins eval", "builtins getattr", "numpy load", "numpy.core.multiarray scalar", "numpy ndarray.tofile"],
    )
    def test_nothing_else_is_admitted(self, wanted: str) -> None:
        module, name = wanted.split()
        data = b"\x80\x04" + _short(module) + _short(name) + b"\x93."
        with pytest.raises(DataError, match=f"the pickle wants {module}.{name}"):
            unpickle(data, "batch")

    def test_must_be_a_dictionary(self) -> None:
        with pytest.raises(DataError, match="batch holds a list: must be a dictionary"):
            unpickle(pickle.dumps([1]), "batch")

    def test_damage_of_any_kind(self) -> None:
        data = python2_pickle({"data": np.zeros((2, 4), np.uint8), "labels": [1, 2]})
        rng = np.random.default_rng(0)
        refused = 0
        for length in range(len(data)):
            with pytest.raises(DataError):
                unpickle(data[:length], "batch")
        for _ in range(300):
            changed = bytearray(data)
            changed[rng.integers(len(data))] = rng.integers(256)
            try:
                unpickle(bytes(changed), "batch")
            except DataError:
                refused += 1
        assert refused > 100


class _Command:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def _short(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


def _length(text: str) -> bytes:
    return len(text).to_bytes(4, "little") + text.encode()
